"""The distribution `sluice-llm` beside others that have a package `sluice`, and what its wheel holds."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib.metadata import distributions
from pathlib import Path

import pytest

import sluice_llm
import sluice_namesakes
from sluice.kernels.cpu.sources import SUFFIXES
from sluice.version import DISTRIBUTION, VERSION

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def installed(
    folder: Path, name: str, version: str = "1.2.3", files: tuple[str, ...] = ("sluice/__init__.py",)
) -> None:
    """Write what pip leaves of a distribution."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},sha256=x,1\n" for file in (*files, f"{info.name}/RECORD")))


def test_one_name_everywhere() -> None:
    assert PROJECT["project"]["name"] == DISTRIBUTION == sluice_llm.DISTRIBUTION
    assert PROJECT["project"]["scripts"] == {"sluice": "sluice.cli:main", "sluice-llm": "sluice_llm:main"}
    extras = [need for needs in PROJECT["project"]["optional-dependencies"].values() for need in needs]
    assert [need for need in extras if need.startswith("sluice")] == [
        f"{DISTRIBUTION}[transformers,quantized,otel,gpu]"
    ]


def test_the_code_names_the_right_package_to_install() -> None:
    """`pip install sluice[...]` brings another project."""
    pages = [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    wrong = ("pip install sluice ", "pip install sluice`", "pip install 'sluice[", "pip install sluice\n")
    assert not [page for page in pages if any(text in page.read_text() for text in wrong)]


def test_others_of_the_name_are_told_apart(tmp_path: Path) -> None:
    """Two distributions overwrite each other's files without a word of pip."""
    installed(tmp_path, DISTRIBUTION)
    installed(tmp_path, "sluice_llm", "0.0.9")  # an older one of ours, under another spelling
    installed(tmp_path, "job-tool", files=("job_tool/sluice/__init__.py", "sluice.py"))
    assert sluice_namesakes.namesakes(distributions(path=[str(tmp_path)])) == []
    installed(tmp_path, "sluice")
    installed(tmp_path, "sluice-pipeline", "0.4.0")
    found = sluice_namesakes.namesakes(distributions(path=[str(tmp_path)]))
    assert found == ["sluice 1.2.3", "sluice-pipeline 0.4.0"]


def test_the_version_says_whose_it_is(tmp_path: Path) -> None:
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-m", "sluice", "--version"]
    alone = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert alone.stdout == f"sluice {VERSION} ({DISTRIBUTION})\n"
    assert alone.stderr == ""
    installed(tmp_path, "sluice")
    warned = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert warned.stdout == alone.stdout
    assert "warning: sluice 1.2.3 has a package `sluice`, too" in warned.stderr
    assert warned.stderr.count("\n") == 1


def test_the_own_command_says_that_the_package_is_another(tmp_path: Path) -> None:
    """What is left of ours after another distribution has overwritten the package."""
    (tmp_path / "sluice").mkdir()
    (tmp_path / "sluice" / "__init__.py").touch()
    installed(tmp_path, "sluice")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import sluice_llm; sys.exit(sluice_llm.main())"
    done = subprocess.run([sys.executable, "-c", program, "--version"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "the package `sluice` here is of sluice 1.2.3" in done.stderr
    assert done.stderr.count("\n") == 1


def test_every_file_that_the_package_reads_is_in_the_wheel() -> None:
    """A page that is there in a checkout alone."""
    source = ROOT / "src" / "sluice"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["sluice"]
    git = subprocess.run(["git", "ls-files", "."], cwd=source, capture_output=True, text=True)
    if git.returncode != 0:
        pytest.skip("not a checkout")
    names = [name for name in git.stdout.splitlines() if Path(name).suffix not in (".py", *SUFFIXES)]
    assert "http/web/index.html" in names
    left_out = [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)]
    assert left_out == []
