"""Finds a model's files: the default model, a folder on this machine, or a download from the Hugging Face hub."""

from __future__ import annotations

import logging
import socket
from functools import partial
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

from sluice.models.checkpoint import CheckpointError
from sluice.models.default_model import default_checkpoint
from sluice.models.formats.gguf_folder import BESIDE, SUFFIX, gguf_at, gguf_folder
from sluice.models.formats.gguf_hub import chosen_file, models_among, parts_among
from sluice.models.package_index import Report

LOGGER = logging.getLogger("sluice.models")
EXAMPLE = "Qwen/Qwen3-0.6B"
WANTED = ["*.json", "*.safetensors", "*.jinja", "merges.txt", "tokenizer.model", "spm.model", "tiktoken.model"]
UNWANTED = ["[!0-9a]*/*", "a[!d]*/*", "ad[!d]*/*", "consolidated*"]
"""Folders and files with the same weights in other formats.

Folders with a number hold settings (`pooling.py`), and `additional_chat_templates` holds chat templates.
"""
WEIGHTS = ["*.safetensors", "*.safetensors.index.json"]


def resolve_checkpoint(
    model: str,
    *,
    revision: str | None = None,
    endpoint: str | None = None,
    cache: Path | None = None,
    weights: bool = True,
    report: Report | None = None,
) -> Path:
    """Return the folder with a model's files, downloading them if `model` is a hub id (`owner/name`).

    Args:
        model: an existing folder or GGUF file, or a hub id; empty: the default model. What exists takes precedence.
            Behind a hub id and a colon may be the name of one of its GGUF files, or its end, such as "Q4_0".
        revision: branch, tag or commit on the hub; None for its main branch.
        endpoint: address of the hub; None for Hugging Face's.
        cache: folder for downloads; None for the default of `huggingface_hub`.
        weights: download them, too.
        report: called several times a second while the default model is downloaded.

    Raises:
        CheckpointError: no such file or folder, no such model or revision on the hub, or the hub cannot be reached; a
            revision of a folder; no such GGUF file; the default model cannot be downloaded.
    """
    if not model:
        if revision is not None:
            raise CheckpointError(f"--revision {revision} needs a model on the hub, and none is named")
        return default_checkpoint(cache, report)
    path = Path(model).expanduser()
    if path.exists():
        if revision is not None:
            kind = "folder" if path.is_dir() else "file"
            raise CheckpointError(f"--revision {revision} needs a model on the hub, and {model!r} is a {kind}")
        return _local(path, cache)
    check_path(model)
    repository, _, choice = model.partition(":")
    try:
        return _downloaded(repository, choice, revision, endpoint, cache, weights=weights)
    except CheckpointError:
        raise
    except HFValidationError:
        raise CheckpointError(f"{model!r} is neither an existing file or folder nor a hub id (owner/name)") from None
    except RevisionNotFoundError:
        raise CheckpointError(f"{model!r} has no revision {revision!r} on the hub") from None
    except RepositoryNotFoundError:
        raise CheckpointError(
            f"{model!r} is neither an existing file or folder nor a model on the hub that you have access to"
        ) from None
    except Exception as error:
        hint = "" if "/" in model else f"; ids on the hub are like {EXAMPLE}"
        raise CheckpointError(
            f"{model!r} is not a local file or folder and could not be downloaded from the hub: {_reason(error)}{hint}"
        ) from error


def check_path(model: str) -> None:
    """Refuse the name of a file or a folder that is not there. Other names may be hub ids.

    Raises:
        CheckpointError: it is such a name.
    """
    path = Path(model).expanduser()
    if path.exists():
        return
    repository, _, choice = model.partition(":")
    if choice == "" and path.suffix == SUFFIX and ("/" not in model or path.parent.is_dir()):
        raise CheckpointError(f"there is no file {model!r}")
    if model.startswith(("/", ".", "~")) or repository.count("/") > 1:
        raise CheckpointError(f"there is no file or folder {model!r}")


def _reason(error: BaseException) -> str:
    """Return why a download failed. What is raised without a connection depends on the transport of huggingface_hub."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionError | socket.gaierror):
            return (
                f"it cannot be reached ({cause.strerror or cause}): check the network, or name a proxy in HTTPS_PROXY"
            )
        cause = cause.__cause__ or cause.__context__
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _downloaded(
    repository: str, choice: str, revision: str | None, endpoint: str | None, cache: Path | None, *, weights: bool
) -> Path:
    """Return the folder of a checkpoint on the hub. Of one that holds only GGUF files, one file is downloaded."""
    # Named in full, so that it is imported when it is used: it takes 0.2 s, and a folder needs none of it.
    fetch = partial(
        huggingface_hub.snapshot_download, repository, revision=revision, endpoint=endpoint, cache_dir=cache
    )
    is_whole = weights and not choice
    ignored = UNWANTED if is_whole else [*UNWANTED, *WEIGHTS]
    folder = Path(fetch(allow_patterns=WANTED, ignore_patterns=ignored))
    if not weights or (is_whole and any(folder.glob("*.safetensors"))):
        return folder
    try:
        names = list(huggingface_hub.HfApi(endpoint).list_repo_files(repository, revision=revision))
    except Exception:
        # Without a connection: what was downloaded before.
        names = [file.relative_to(folder).as_posix() for file in folder.rglob("*")]
        if not models_among(names):
            raise
    if is_whole and not models_among(names):
        return folder
    file = chosen_file(repository, names, choice)
    LOGGER.info("%s: of its %d GGUF files %s is loaded", repository, len(models_among(names)), file)
    return gguf_folder(Path(fetch(allow_patterns=[*parts_among(names, file), *BESIDE])) / file, cache)


def _local(path: Path, cache: Path | None) -> Path:
    """Return the folder of a checkpoint on this machine; one is made of a GGUF file."""
    file = gguf_at(path)
    if file is not None:
        return gguf_folder(file, cache)
    if path.is_dir():
        return path
    raise CheckpointError(f"model must be a folder, a GGUF file ({SUFFIX}) or a hub id, and {path} is another file")
