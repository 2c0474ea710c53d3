"""The models in the cache of `huggingface_hub` on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from sluice.cli.models.servable import Verdict, judge, judge_gguf
from sluice.models.formats.gguf_hub import models_among

MAIN = "main"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model that was downloaded."""

    id: str
    """Name that `sluice serve` takes: the hub id, followed for a GGUF file by a colon and the file."""
    revision: str | None
    """The commit, if no branch `main` of it is here."""
    bytes: int
    """Bytes on the disk: those of all revisions, or of the GGUF file alone."""
    folder: Path
    verdict: Verdict

    @property
    def arguments(self) -> list[str]:
        """The words behind `sluice serve`."""
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


def _models_of(repository: Any) -> Iterator[CachedModel]:
    """Yield the models of a repository: one, or each of its GGUF files."""
    revisions = sorted(repository.revisions, key=lambda each: (MAIN in each.refs, each.last_modified), reverse=True)
    if not revisions:
        return
    latest = revisions[0]
    commit = None if MAIN in latest.refs else latest.commit_hash
    folder = Path(latest.snapshot_path)
    files = {file.file_name: file for file in latest.files}
    if "config.json" not in files and (names := models_among(list(files))):
        for name in names:
            verdict = judge_gguf(folder / name)
            yield CachedModel(f"{repository.repo_id}:{name}", commit, files[name].size_on_disk, folder, verdict)
        return
    yield CachedModel(repository.repo_id, commit, repository.size_on_disk, folder, judge(folder))
