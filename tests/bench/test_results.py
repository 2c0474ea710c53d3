"""The versions and the machine that a result file names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sluice.bench.results import installed_versions, versions


def install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")


def test_the_version_of_torch_names_its_build() -> None:
    """Figures of two builds were recorded under one version where the package's metadata lack the build."""
    assert versions(("torch",))["torch"] == torch.__version__


@pytest.mark.parametrize("build", ["2.13.0+cu130", "2.13.0+cpu", "2.13.0"])
def test_the_build_is_found_without_importing_torch(tmp_path: Path, build: str) -> None:
    install(tmp_path, "torch", "2.13.0")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(f"__all__ = ['__version__']\n__version__ = '{build}'\n")
    assert installed_versions(("torch",), [str(tmp_path)]) == {"torch": build}


def test_a_torch_whose_sources_are_elsewhere_has_the_version_of_its_metadata(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.13.0")
    assert installed_versions(("torch",), [str(tmp_path)]) == {"torch": "2.13.0"}


def test_what_is_not_installed_is_left_out(tmp_path: Path) -> None:
    install(tmp_path, "numpy", "2.0.1")
    assert installed_versions(("numpy", "torch"), [str(tmp_path)]) == {"numpy": "2.0.1"}
