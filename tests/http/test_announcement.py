"""What `sluice serve` prints works as it is printed."""

from __future__ import annotations

import shlex
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

import sluice
from shadow_engine import LIMITS
from sluice.config import EngineConfig
from sluice.http.observe.announcement import announcement, own_command
from sluice.process.wire import Ready
from sluice.text.parsers.choosing import choose


@pytest.mark.parametrize(
    "script", [Path(sysconfig.get_path("scripts")) / "sluice", Path(sluice.__file__).with_name("__main__.py")]
)
@pytest.mark.parametrize("folder", [".", "..", "bin"])
def test_the_own_command_runs_as_printed(
    script: Path, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `make serve` the banner named a `sluice` that was not on the path."""
    home = tmp_path / "a folder"
    (home / "bin").mkdir(parents=True)
    link = home / "bin" / script.name
    link.symlink_to(script)
    monkeypatch.chdir(home / folder)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    printed = own_command(str(link), sys.executable)
    shown = subprocess.run(f"{printed} --version", shell=True, capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("sluice 0.")


def test_a_program_below_the_current_folder_is_named_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert own_command(".venv/bin/sluice", "python") == ".venv/bin/sluice"
    assert own_command(str(tmp_path / ".venv/bin/sluice"), "python") == ".venv/bin/sluice"
    assert own_command(str(tmp_path / "sluice"), "python") == "./sluice"
    assert own_command("/opt/my tools/sluice", "python") == "'/opt/my tools/sluice'"
    module = str(tmp_path / "site-packages/sluice/__main__.py")
    assert own_command(module, str(tmp_path / ".venv/bin/python")) == ".venv/bin/python -m sluice"
    assert shlex.split(own_command("/opt/my tools/sluice", "python")) == ["/opt/my tools/sluice"]


def test_the_announcement_tells_what_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    def ready(**options: object) -> Ready:
        return Ready("m", "f", LIMITS, (), config=EngineConfig.from_options(options))

    def shown(ready: Ready) -> str:
        return announcement("http://here", "m", ready, choose(None), chat=True, command="sluice")

    assert "It has" not in shown(ready())
    chosen = shown(ready(quantization="int8", kv_cache_dtype="int8", itl_target="200ms"))
    assert "It has weights in int8, KV in int8, an ITL target of 200ms." in chosen
    stored = replace(ready(quantization="gguf"), reasons={"quantization": "GGUF, Q4_K (169), computed as stored"})
    assert "\nIts weights are GGUF, Q4_K (169), computed as stored.\n" in shown(stored)
    assert "It has" not in shown(stored)


def test_the_page_is_named_where_there_is_one() -> None:
    ready = Ready("m", "f", LIMITS, (), config=EngineConfig())
    with_page, without = (
        announcement("http://here", "m", ready, choose(None), chat=True, command="sluice", page=page)
        for page in (True, False)
    )
    assert "Open http://here/ in a browser" in with_page
    assert "browser" not in without
