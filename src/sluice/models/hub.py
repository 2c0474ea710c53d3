"""Finds a model's files: the bundled model, a folder on this machine, or a download from the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

from sluice.models.checkpoint import CheckpointError
from sluice.models.formats.gguf_folder import SUFFIX, gguf_folder, gguf_in

BUNDLED = Path(__file__).parent / "sluice-nano"
"""A Hugging Face checkpoint: configuration, tokenizer, chat template, weights. The folder's name is the model's."""


WANTED = ["*.json", "*.safetensors", "*.jinja", "merges.txt", "tokenizer.model", "spm.model", "tiktoken.model"]
UNWANTED = ["[!0-9]*/*", "consolidated*"]
"""Folders and files with the same weights in other formats. Folders with a number hold settings (`pooling.py`)."""
WEIGHTS = ["*.safetensors", "*.safetensors.index.json"]


def resolve_checkpoint(
    model: str,
    *,
    revision: str | None = None,
    endpoint: str | None = None,
    cache: Path | None = None,
    weights: bool = True,
) -> Path:
    """Return the folder with a model's files, downloading them if `model` is a hub id (`owner/name`).

    Args:
        model: an existing folder or GGUF file, or a hub id. What exists takes precedence.
        revision: branch, tag or commit on the hub; None for its main branch.
        endpoint: address of the hub; None for Hugging Face's.
        cache: folder for downloads; None for the default of `huggingface_hub`.
        weights: download them, too.

    Raises:
        CheckpointError: no such folder, no such model or revision on the hub, or the hub cannot be reached; a revision
            of a folder.
    """
    if not model:
        raise CheckpointError("model must be a folder or a hub id, got an empty text")
    path = Path(model).expanduser()
    if path.exists():
        if revision is not None:
            kind = "folder" if path.is_dir() else "file"
            raise CheckpointError(f"--revision {revision} needs a model on the hub, and {model!r} is a {kind}")
        return _local(path, cache)
    if model.startswith(("/", ".", "~")) or model.count("/") > 1:
        raise CheckpointError(f"there is no folder {model!r}")
    try:
        return Path(
            snapshot_download(
                model,
                revision=revision,
                allow_patterns=WANTED,
                ignore_patterns=UNWANTED if weights else [*UNWANTED, *WEIGHTS],
                endpoint=endpoint,
                cache_dir=cache,
            )
        )
    except HFValidationError:
        raise CheckpointError(f"{model!r} is neither an existing folder nor a hub id (owner/name)") from None
    except RevisionNotFoundError:
        raise CheckpointError(f"{model!r} has no revision {revision!r} on the hub") from None
    except RepositoryNotFoundError:
        raise CheckpointError(
            f"{model!r} is neither an existing folder nor a model on the hub that you have access to"
        ) from None
    except Exception as error:
        # The exception for "no connection" depends on the transport of the installed huggingface_hub.
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"{model!r} is not a local folder and could not be downloaded from the hub: {reason}"
        ) from error


def _local(path: Path, cache: Path | None) -> Path:
    """Return the folder of a checkpoint on this machine; one is made of a GGUF file."""
    if path.is_dir():
        file = gguf_in(path)
        return path if file is None else gguf_folder(file, cache)
    if path.suffix == SUFFIX:
        return gguf_folder(path, cache)
    raise CheckpointError(f"model must be a folder, a GGUF file ({SUFFIX}) or a hub id, and {path} is another file")
