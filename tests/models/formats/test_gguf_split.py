"""Models in several GGUF files, as llama-gguf-split writes them, and folders that hold such files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tiny_models
from gguf_bytes import TEXT, UINT32, tensor, value, write
from gguf_makers import write_gguf
from models.formats.loading import assert_same, load
from sluice.models.checkpoint import CheckpointError
from sluice.models.hub import resolve_checkpoint
from sluice.models.weights import fingerprint, weight_files


@pytest.fixture
def parts(tmp_path: Path) -> tuple[Path, Path]:
    """Write a model in three parts. Returns the first one, and the checkpoint that it stands for."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_key_value_heads": 4}
    tiny_models.llama(**sizes).save_pretrained(tmp_path / "source")
    (tmp_path / "files").mkdir()
    first, plain = write_gguf(tmp_path / "source", tmp_path / "files" / "tiny.gguf", "Q8_0", split=8)
    assert first.name == "tiny-00001-of-00003.gguf"
    return first, plain


def other(first: Path, number: int) -> Path:
    return first.with_name(f"tiny-{number:05}-of-00003.gguf")


def resolved(model: Path, tmp_path: Path) -> Path:
    return resolve_checkpoint(str(model), cache=tmp_path / "cache")


def test_the_first_part_stands_for_all(parts: tuple[Path, Path], tmp_path: Path) -> None:
    first, plain = parts
    folder = resolved(first, tmp_path)
    assert_same(load(folder, dtype="bfloat16"), load(plain, dtype="bfloat16"))
    files = weight_files(folder)
    assert [path.readlink().name for path in files] == [other(first, number).name for number in (1, 2, 3)]


def test_a_folder_with_the_parts_of_one_model(parts: tuple[Path, Path], tmp_path: Path) -> None:
    first, _ = parts
    assert resolved(first.parent, tmp_path) == resolved(first, tmp_path)
    shutil.copy(first, first.with_name("whole.gguf"))
    with pytest.raises(CheckpointError, match=r"holds 2 GGUF files: name one of them: tiny-00001-of-00003.gguf, whole"):
        resolved(first.parent, tmp_path)


def test_every_part_counts_for_the_identity_of_the_weights(parts: tuple[Path, Path], tmp_path: Path) -> None:
    """KV of another model would be taken for this one's."""
    first, _ = parts
    before, part = resolved(first, tmp_path), other(first, 3)
    digest = fingerprint(before)
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    after = resolved(first, tmp_path)
    assert after != before
    assert fingerprint(after) != digest


def refused(path: Path, problem: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=problem):
        resolved(path, tmp_path)


def test_a_part_that_is_missing(parts: tuple[Path, Path], tmp_path: Path) -> None:
    first, _ = parts
    resolved(first, tmp_path)  # what was made of the whole model is not used
    other(first, 2).unlink()
    refused(first, r"^tiny-00002-of-00003\.gguf is missing beside tiny-00001-of-00003\.gguf$", tmp_path)


def test_another_part_than_the_first(parts: tuple[Path, Path], tmp_path: Path) -> None:
    problem = r"^tiny-00002-of-00003\.gguf is part 2 of 3: name the first part, tiny-00001-of-00003\.gguf$"
    refused(other(parts[0], 2), problem, tmp_path)


def test_a_first_part_with_another_name(parts: tuple[Path, Path], tmp_path: Path) -> None:
    renamed = parts[0].rename(parts[0].with_name("tiny.gguf"))
    refused(renamed, r"^tiny\.gguf is the first of 3 parts .* must have a name that ends with -00001-of-0", tmp_path)


def test_parts_in_another_order(parts: tuple[Path, Path], tmp_path: Path) -> None:
    first, _ = parts
    shutil.copy(other(first, 3), other(first, 2))
    refused(first, r"^tiny-00002-of-00003\.gguf: split\.no must be 1, as the file's name says, got 2$", tmp_path)


def test_a_part_that_is_cut_off(parts: tuple[Path, Path], tmp_path: Path) -> None:
    part = other(parts[0], 2)
    part.write_bytes(part.read_bytes()[:-100])
    refused(parts[0], r"^tiny-00002-of-00003\.gguf: tensor '\S+' needs .* lacks 100 of them: it is cut off", tmp_path)


def two(folder: Path, total: int, second: str) -> Path:
    """Write a model of two parts with one tensor each."""
    for number, name in enumerate(("token_embd.weight", second)):
        keys = [("split.no", number), ("split.count", 2), ("split.tensors.count", total)]
        write(
            folder / f"a-0000{number + 1}-of-00002.gguf",
            [("general.architecture", value(TEXT, "llama")), *((key, value(UINT32, number)) for key, number in keys)],
            [tensor(name, [4, 2])],
            bytes(32),
        )
    return folder / "a-00001-of-00002.gguf"


def test_parts_that_do_not_add_up(tmp_path: Path) -> None:
    problem = r"^a-00001-of-00002\.gguf: split\.tensors\.count must be 2, the tensors of all 2 parts, got 3$"
    refused(two(tmp_path, 3, "output.weight"), problem, tmp_path)
    problem = r"^a-00002-of-00002\.gguf: tensor 'token_embd\.weight' is also there in a-00001-of-00002\.gguf$"
    refused(two(tmp_path, 2, "token_embd.weight"), problem, tmp_path)


def test_a_file_that_was_joined_keeps_its_name(parts: tuple[Path, Path], tmp_path: Path) -> None:
    """What a file says of itself counts, not its name."""
    path, _ = write_gguf(tmp_path / "source", tmp_path / "tiny-00001-of-00003.gguf", "Q8_0")
    load(resolved(path, tmp_path))
