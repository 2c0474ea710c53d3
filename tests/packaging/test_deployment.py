"""The files in deploy/: their commands are accepted, and they agree with the server about ports, paths and times."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.cli import build_parser
from sluice.cli.commands import configs
from sluice.config import ServerConfig
from sluice.http.base.auth import OPEN_PATHS
from sluice.version import DISTRIBUTION

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NEXT = PROJECT["tool"]["setuptools_scm"]["fallback_version"].removesuffix(".dev0")
"""The version to be released next, which the manifests and the page about images name."""


def server_of(*arguments: str) -> ServerConfig:
    """The server's options in a command line, which must be accepted."""
    given = vars(build_parser().parse_args(arguments))
    given.pop("run")
    server, _, _ = configs(given)
    return server


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_an_image(name: str) -> None:
    text = (DEPLOY / name).read_text()
    command = json.loads(re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)[-1])
    server = server_of(*command)
    assert server.host == "0.0.0.0", "nobody reaches a server on a container's own loopback"
    assert f"EXPOSE {server.port}\n" in text
    assert f"127.0.0.1:{server.port}/live" in text
    assert "/live" in OPEN_PATHS
    assert "\nUSER 10001\n" in text, "not as root"
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    kept = [line[1:] for line in ignored if line.startswith("!")]
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in", "requirements/constraints.txt"):
        assert any(fnmatch(file, pattern) for pattern in kept), file
        assert (ROOT / file).exists()


def test_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "sluice.service").read_text()
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    line = line.replace("$MODEL", "some/model").replace("$ARGS", "--port 8001")
    _, *arguments = shlex.split(line.replace("${CREDENTIALS_DIRECTORY}", "/run"))
    server = server_of(*arguments)
    assert server.api_key_file == "/run/api-keys"
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(seconds) > server.drain_timeout, "systemd would kill requests that may end"
    (cache,) = re.findall(r"^CacheDirectory=(.*)$", text, re.MULTILINE)
    for name in ("HF_HOME", "TRITON_CACHE_DIR"):
        assert re.search(rf"^Environment=.*\b{name}=/var/cache/{cache}(/\w+)?( |$)", text, re.MULTILINE), name
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    unit = tmp_path / "sluice.service"
    unit.write_text(text.replace("/opt/sluice/bin/sluice", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def objects() -> dict[str, Any]:
    content = (DEPLOY / "kubernetes" / "sluice.yaml").read_text()
    return {each["kind"]: each for each in yaml.safe_load_all(content) if each is not None}


def test_the_manifests_agree_with_the_server() -> None:
    """`python -m pip install kubernetes-validate` checks them against the schema; here, what no schema knows."""
    found = objects()
    spec = found["Deployment"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    server = server_of(*container["args"])
    (port,) = container["ports"]
    assert port["containerPort"] == server.port
    assert pod["terminationGracePeriodSeconds"] > server.drain_timeout
    assert container["livenessProbe"]["httpGet"]["path"] == "/live"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert {"/live", "/ready"} <= OPEN_PATHS, "a probe has no API key"
    assert container["image"] == f"{DISTRIBUTION}:{NEXT}"
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    assert server.api_key_file == f"{mounts['api-keys']}/api-keys"
    assert mounts["models"] == "/models", "HF_HOME of the image"
    assert spec["template"]["metadata"]["labels"].items() >= spec["selector"]["matchLabels"].items()
    service = found["Service"]["spec"]
    assert service["selector"] == spec["selector"]["matchLabels"]
    assert service["ports"][0]["targetPort"] == port["name"]
    (claim,) = [v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
    assert claim == found["PersistentVolumeClaim"]["metadata"]["name"]
