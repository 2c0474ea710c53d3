"""Makes a checkpoint folder of a GGUF file: its configuration, and links to the file and to what is beside it.

So all that reads a checkpoint reads a folder. It is in a cache, under a name that depends on the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType

import huggingface_hub

from sluice.models.checkpoint import CheckpointError
from sluice.models.formats.gguf_config import model_config
from sluice.models.formats.gguf_open import fields_of, open_gguf
from sluice.models.formats.gguf_sampling import generation_config
from sluice.text.gguf.model import GGUFModel, part_name
from sluice.version import VERSION

SUFFIX = ".gguf"
GENERATION_CONFIG = "generation_config.json"
BESIDE = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json", GENERATION_CONFIG),
)
"""Files that are used in place of what the GGUF file says, if they are beside it."""
NO_FILES: Mapping[str, str] = MappingProxyType({})


def gguf_in(folder: Path) -> Path | None:
    """Return the GGUF file of a folder that holds no other weights; of a split one, its first part.

    Raises:
        CheckpointError: it holds several.
    """
    files = [file for file in sorted(folder.glob(f"*{SUFFIX}")) if not _is_later_part(file)]
    if not files or any(folder.glob("*.safetensors*")) or (folder / "config.json").is_file():
        return None
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise CheckpointError(f"{folder} holds {len(files)} GGUF files: name one of them: {names}")
    return files[0]


def gguf_at(path: Path) -> Path | None:
    """Return the GGUF file that a path is, or that its folder holds (`gguf_in`); None if there is none.

    Raises:
        CheckpointError: the folder holds several.
    """
    if path.is_dir():
        return gguf_in(path)
    return path if path.suffix == SUFFIX and path.is_file() else None


def _is_later_part(file: Path) -> bool:
    first = part_name(file.name)
    return first not in (None, file.name) and file.with_name(str(first)).is_file()


def gguf_folder(path: Path, cache: Path | None, more: Mapping[str, str] = NO_FILES) -> Path:
    """Return the checkpoint folder of a GGUF file, made if it is not there.

    Args:
        path: the file; of a split one, its first part.
        cache: folder for downloads; None for the default of `huggingface_hub`.
        more: files that the folder gets, by name.

    Raises:
        CheckpointError: the file is broken or not supported, or the folder cannot be written.
    """
    path = path.absolute()  # not resolved: the hub's cache links to files without their names and neighbours
    try:
        folder = huggingface_hub.cached_assets_path("sluice", METHOD_FOLDER, _key(path, more), assets_dir=cache)
        if (folder / "config.json").is_file():
            return folder
        made = Path(mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        try:
            _fill(made, path, more)
            _put(made, folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise CheckpointError(f"no checkpoint folder could be made of {path.name}: {error}") from error
    return folder


METHOD_FOLDER = "gguf"
LAYOUT = "3"
"""Version of what a folder holds. Folders of other versions are left as they are."""


def _put(made: Path, folder: Path) -> None:
    """Give a folder that was made its name, unless another process has made it by now."""
    try:
        made.rename(folder)  # over an empty folder
    except OSError:
        if not (folder / "config.json").is_file():
            shutil.rmtree(folder)
            made.rename(folder)


def _key(path: Path, more: Mapping[str, str]) -> str:
    """Return a name for what a folder is made of: the file, what is beside it, and this version."""
    parts = [VERSION, LAYOUT, *(f"{name}\0{text}" for name, text in more.items())]
    for file in (*_with_parts(path), *(path.parent / name for name in BESIDE)):
        if file.is_file():
            state = file.stat()
            parts.append(f"{file}\0{state.st_size}\0{state.st_mtime_ns}")
    return f"{path.stem}-{hashlib.sha256(os.fsencode(chr(1).join(parts))).hexdigest()[:16]}"


def _with_parts(path: Path) -> list[Path]:
    """Return a file, and what may be the other parts of a split one."""
    first = part_name(path.name)
    if first is None:
        return [path]
    return [
        path,
        *(file for file in sorted(path.parent.glob(f"*{SUFFIX}")) if part_name(file.name) == first != file.name),
    ]


def _fill(folder: Path, path: Path, more: Mapping[str, str]) -> None:
    model: GGUFModel = open_gguf(path)
    (folder / "config.json").write_text(json.dumps(model_config(model), indent=1), encoding="utf-8")
    for name, text in more.items():
        (folder / name).write_text(text, encoding="utf-8")
    sampling = generation_config(fields_of(model))
    for name in BESIDE:
        if name in more:
            continue
        if (path.parent / name).is_file():
            (folder / name).symlink_to(path.parent / name)
        elif name == GENERATION_CONFIG and sampling:
            (folder / name).write_text(json.dumps(sampling), encoding="utf-8")
    for number, part in enumerate(model.paths):
        (folder / f"model{f'-{number + 1:05}' if number else ''}{SUFFIX}").symlink_to(part)
