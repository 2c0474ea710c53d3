from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_models


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint folder of a family's tiny model, written once. Copy it before changing it."""
    folders: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in folders:
            folders[family] = tiny_models.save(family, tmp_path_factory.mktemp(family))
        return folders[family]

    return folder
