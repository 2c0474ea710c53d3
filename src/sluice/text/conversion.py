"""Converts tokenizers of formats that Sluice does not read itself, such as unigrams and tiktoken's, with transformers.

transformers is an optional dependency, and its models take seconds and hundreds of megabytes to import. So it runs in
a process of its own, which ends with the conversion: `python -m sluice.text.conversion FILE`. There it finds no torch,
and has tokenizers alone. The result is a tokenizer of the `tokenizers` library like any other.

transformers sees a copy of the tokenizer's own files, without code that a checkpoint may bring.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers

CONVERTIBLE = ("tokenizer.model", "spm.model", "tiktoken.model", "vocab.json")
"""Files that transformers converts: SentencePiece or tiktoken, SentencePiece, tiktoken, GPT-2's with merges.txt."""
OTHER = ("tekken.json", "*.tiktoken", "*.model", "vocab.txt")
"""Files of tokenizers that are not converted: `tekken` reads the first, others are only named."""
NEEDED = ("transformers", "sentencepiece", "tiktoken", "google.protobuf")
COPIED = (*CONVERTIBLE, "merges.txt", "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json")
INSTALL = "pip install 'sluice-llm[transformers]'"
SECONDS = 300.0
"""Seconds after which a conversion is given up."""
PROBES = ("Hello, world", "two  spaces\nand lines\n", "numbers 12345 (and) signs!?", "été 日本語 🙂", "\tdef f(x):")
"""Texts that a converted tokenizer and SentencePiece itself must encode alike.

None begins with a space: there, the two differ for Llama's models, too.
"""


class ConversionError(ValueError):
    """A tokenizer cannot be converted; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A converted tokenizer."""

    backend: tokenizers.Tokenizer
    special_tokens: dict[str, str]
    """Role, such as `eos_token` -> text."""


def other_format(folder: Path) -> Path | None:
    """Return the file of a checkpoint's tokenizer that is not a `tokenizer.json`; None if there is none."""
    known = (folder / name for name in CONVERTIBLE)
    others = (path for pattern in OTHER for path in sorted(folder.glob(pattern)))
    return next((path for path in (*known, *others) if path.is_file()), None)


def convert(path: Path) -> Converted:
    """Convert the tokenizer in a file, in a process of its own.

    Raises:
        ConversionError: the format cannot be converted, what converts it is not installed, or the file is damaged.
    """
    if path.name not in CONVERTIBLE:
        raise ConversionError(f"its {path.name} is of no format that is accepted ({', '.join(CONVERTIBLE)})")
    missing = [package for package in NEEDED if not _is_installed(package)]
    if missing:
        raise ConversionError(f"its {path.name} needs {', '.join(missing)} to be converted: {INSTALL}")
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sluice.text.conversion", str(path)],  # -P: as for the engine
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ConversionError(f"its {path.name} could not be converted within {SECONDS:g} seconds") from None
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2] or f"status {done.returncode}"
        raise ConversionError(f"its {path.name} cannot be converted: {last}")
    result = json.loads(done.stdout.rpartition("\n")[2])
    return Converted(tokenizers.Tokenizer.from_str(result["tokenizer"]), result["special_tokens"])


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package that contains it
        return False


def _converted(path: Path) -> Any:
    """Return transformers' tokenizer of a folder, which is backed by the `tokenizers` library.

    Raises:
        ConversionError: it is not, it needs code of the checkpoint, or it does not encode as SentencePiece does.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    logging.getLogger("transformers").setLevel(logging.ERROR)
    with TemporaryDirectory(prefix="sluice-") as copy:
        try:
            _copy(path.parent, Path(copy))
            tokenizer = AutoTokenizer.from_pretrained(copy, local_files_only=True)
        except Exception as error:  # transformers has no exception of its own for this
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ConversionError(reason) from error
    name = type(tokenizer).__name__
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ConversionError(f"transformers computes {name} without the tokenizers library")
    if path.suffix == ".model":
        _check_sentencepiece(path, name, tokenizer.backend_tokenizer)
    return tokenizer


def _copy(folder: Path, to: Path) -> None:
    """Copy what a tokenizer consists of, and of the model's configuration its type, which may choose the class.

    Raises:
        ConversionError: the tokenizer is code of the checkpoint.
    """
    for name in COPIED:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, to / name)
    settings = _json_object(folder / "tokenizer_config.json")
    if "auto_map" in settings:
        raise ConversionError("tokenizer_config.json asks for code of the checkpoint (auto_map), which never runs")
    kind = _json_object(folder / "config.json").get("model_type")
    (to / "config.json").write_text(json.dumps({} if kind is None else {"model_type": kind}))


def _json_object(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not isinstance(content, dict):
        raise ConversionError(f"{path.name} must hold a JSON object")
    return content


def _check_sentencepiece(path: Path, name: str, backend: tokenizers.Tokenizer) -> None:
    """Check that a converted tokenizer encodes as the original does, if that is a SentencePiece model.

    transformers converts by rules for the tokenizer's class, and some do not fit a model that names the wrong class.
    """
    import sentencepiece

    try:
        original = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except RuntimeError:
        return  # tiktoken has no rules but those of the conversion
    for text in PROBES:
        expected = [original.id_to_piece(token) for token in original.encode(text)]
        pieces = backend.encode(text, add_special_tokens=False).tokens
        if pieces != expected:
            raise ConversionError(
                f"transformers' {name} encodes {text!r} as {pieces}, SentencePiece as {expected}; tokenizer_class in"
                " tokenizer_config.json chooses the rules of the conversion"
            )


def main(arguments: list[str]) -> None:
    """Convert the tokenizer in a file, and write it to the standard output."""
    try:
        tokenizer = _converted(Path(arguments[0]))
    except ConversionError as error:
        sys.exit(str(error).replace("\n", " "))
    roles = {role: text for role, text in tokenizer.special_tokens_map.items() if isinstance(text, str)}
    sys.stdout.write("\n" + json.dumps({"tokenizer": tokenizer.backend_tokenizer.to_str(), "special_tokens": roles}))


def hide_torch() -> None:
    """Let transformers find no torch, and so import none of its models, in a process that converts a tokenizer."""
    sys.modules["torch"] = None  # type: ignore[assignment]


if __name__ == "__main__":
    hide_torch()
    main(sys.argv[1:])
