"""The models in the cache of `huggingface_hub` on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from sluice.cli.models.servable import Verdict, judge, judge_gguf
from sluice.models.checkpoint import CheckpointError
from sluice.models.default_model import NAME, default_file
from sluice.models.formats.gguf_folder import SUFFIX
from sluice.models.formats.gguf_hub import chosen_file, models_among, parts_among

MAIN = "main"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model that was downloaded."""

    id: str
    """Name that `sluice serve` takes: the hub id, followed for a GGUF file by a colon and the file; or a path."""
    revision: str | None
    """The commit, if no branch `main` of it is here."""
    bytes: int
    """Bytes on the disk: those of all revisions, or of the GGUF file alone."""
    folder: Path
    verdict: Verdict
    file: Path | None = None
    """The GGUF file, if it is one; of a split one, its first part."""
    is_default: bool = False
    """It is the model that is served if none is named."""

    @property
    def arguments(self) -> list[str]:
        """The words behind `sluice serve`."""
        if self.is_default:
            return []
        return [self.id, *([] if self.revision is None else ["--revision", self.revision])]

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "revision": self.revision,
            "bytes": self.bytes,
            "weights": self.verdict.weights or None,
            "can_be_served": self.verdict.problem is None,
            "problem": self.verdict.problem,
            "note": self.verdict.note,
            "folder": str(self.folder),
        }


def cached_models(cache: Path | None) -> list[CachedModel]:
    """Return the models in a cache, by name.

    Args:
        cache: its folder; None: the default of `huggingface_hub`.

    Raises:
        ValueError: the folder is a file.
    """
    try:
        found = scan_cache_dir(cache)
    except CacheNotFound:
        return []
    repositories = sorted(found.repos, key=lambda each: each.repo_id.lower())
    return [model for each in repositories if each.repo_type == "model" for model in _models_of(each)]


def default_models() -> list[CachedModel]:
    """Return the default model, if it was downloaded."""
    file = default_file(None)
    return [] if file is None else [replace(_model_of_file(file), id=NAME, is_default=True)]


def models_at(path: Path) -> list[CachedModel]:
    """Return the models at a path: a GGUF file, or a checkpoint's folder, or those of the GGUF files in a folder.

    Raises:
        CheckpointError: there are none.
    """
    if path.suffix == SUFFIX and path.is_file():
        return [_model_of_file(path)]
    if not path.is_dir():
        raise CheckpointError(f"there is no {'file' if path.suffix == SUFFIX else 'file or folder'} {str(path)!r}")
    files = [path / name for name in models_among([file.name for file in path.iterdir()])]
    if files and not (path / "config.json").is_file():
        return [_model_of_file(file) for file in files]
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return [CachedModel(str(path), None, size, path, judge(path))]


def _model_of_file(file: Path) -> CachedModel:
    parts = parts_among([other.name for other in file.parent.iterdir()], file.name)
    size = sum((file.parent / part).stat().st_size for part in parts)
    return CachedModel(str(file), None, size, file.parent, judge_gguf(file), file)


def cached_gguf(name: str, cache: str | None) -> Path | None:
    """Return the GGUF file that a hub id stands for, if it is in a cache.

    Args:
        name: the id, and behind a colon what chooses a file.

    Raises:
        CheckpointError: there are GGUF files of this id, and none or several that are asked for.
    """
    repository, _, choice = name.partition(":")
    files = {
        model.id.partition(":")[2]: model.file
        for model in cached_models(None if cache is None else Path(cache))
        if model.file is not None and model.id.partition(":")[0] == repository
    }
    return files[chosen_file(repository, list(files), choice)] if files else None


def _models_of(repository: Any) -> Iterator[CachedModel]:
    """Yield the models of a repository: one, or each of its GGUF files."""
    revisions = sorted(repository.revisions, key=lambda each: (MAIN in each.refs, each.last_modified), reverse=True)
    if not revisions:
        return
    latest = revisions[0]
    commit = None if MAIN in latest.refs else latest.commit_hash
    folder = Path(latest.snapshot_path)
    files = {file.file_path.relative_to(folder).as_posix(): file.size_on_disk for file in latest.files}
    if "config.json" not in files and (names := models_among(list(files))):
        for name in names:
            verdict = judge_gguf(folder / name)
            size = sum(files[part] for part in parts_among(list(files), name))
            yield CachedModel(f"{repository.repo_id}:{name}", commit, size, folder, verdict, folder / name)
        return
    yield CachedModel(repository.repo_id, commit, repository.size_on_disk, folder, judge(folder))
