"""The reader gives what llama.cpp's own writer wrote, and refuses what a file cannot hold before it believes it."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_bytes import ARRAY, BOOL, FLOAT32, INT32, TEXT, UINT8, UINT32, items, tensor, text, value, write
from sluice.text.gguf.cursor import GGUFError
from sluice.text.gguf.file import GGUFFile
from sluice.text.gguf.metadata import Items
from sluice.text.gguf.tensor_types import TYPES


def test_types_are_those_of_the_library() -> None:
    """A wrong size of a block reads every tensor behind it from the wrong place."""
    known = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    ours = {number: (kind.name, kind.per_block, kind.block_bytes) for number, kind in TYPES.items()}
    assert ours == known | {42: ("Q2_0", 64, 18)}  # llama.cpp has it, and its package has not


def test_values_and_tensors_are_those_of_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 200)
    writer.add_int64("i64", -(1 << 40))
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "été 🙂")
    writer.add_array("texts", ["a", "", "ü"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("floats", [0.5, 2.0])
    writer.add_array("bools", [True, False])
    first, second = np.arange(12, dtype=np.float32).reshape(3, 4), np.arange(5, dtype=np.float16)
    writer.add_tensor("first", first)
    writer.add_tensor("second", second)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(path)
    plain = {key: found for key, found in file.metadata.items() if not isinstance(found, Items)}
    assert plain == {
        "general.architecture": "llama",
        "u8": 200,
        "i64": -(1 << 40),
        "f64": 0.1,
        "yes": True,
        "text": "été 🙂",
    }
    assert file.metadata.texts("texts") == ["a", "", "ü"]
    assert [list(file.metadata.numbers(key, count) or ()) for key, count in (("numbers", 3), ("floats", 2))] == [
        [1, -2, 3],
        [0.5, 2.0],
    ]
    assert list(file.metadata.numbers("bools", 2) or ()) == [1, 0]
    assert repr(file.metadata["texts"]) == "an array of 3 text"
    for name, wanted in (("first", first), ("second", second)):
        info = file.tensors[name]
        assert (info.shape, info.kind.name) == (wanted.shape, {"<f4": "F32", "<f2": "F16"}[wanted.dtype.str])
        assert bytes(info.data[info.start : info.start + info.nbytes]) == wanted.tobytes()


F32_DATA = bytes(64)
HUGE = 1 << 62
LIES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no magic": (lambda path: _raw(path, b"not GGUF"), r"is not a GGUF file: it does not begin with GGUF$"),
    "empty": (lambda path: _raw(path, b""), r"is not a GGUF file"),
    "magic alone": (lambda path: _raw(path, b"GGUF"), r"the version ends at byte 8, 4 behind the end of the file"),
    "version 1": (lambda path: write(path, version=1), r"of GGUF version 1, which is not read: convert the model ag"),
    "version 4": (lambda path: write(path, version=4), r"of GGUF version 4; versions 2 and 3 are read"),
    "big-endian": (lambda path: write(path, version=3 << 24), r"a big-endian GGUF file; only little-endian ones"),
    "keys": (lambda path: write(path, num_keys=HUGE), rf"it has {HUGE} keys, and at most 0 have room"),
    "tensors": (lambda path: write(path, num_tensors=HUGE), rf"it has {HUGE} tensors, and at most 0 have room"),
    "a long key": (
        lambda path: write(path, [(bytes(1 << 16), value(UINT8, 1))]),
        r"key 0 of 1 has 65536 bytes, and at most 65535 are allowed",
    ),
    "an empty key": (lambda path: write(path, [("", value(UINT32, 1))]), r"a key is empty"),
    "a key twice": (
        lambda path: write(path, [("a", value(UINT8, 1)), ("a", value(UINT8, 1))]),
        r"key 1 of 2 is 'a', which is there twice",
    ),
    "a key of other bytes": (lambda path: write(path, [(b"a\xff", value(UINT8, 1))]), r"not UTF-8: byte 1 is 0xff"),
    "a type of values": (
        lambda path: write(path, [("a", struct.pack("<II", 13, 0))]),
        r"a has a value of type 13, and ty",
    ),
    "a long text": (
        lambda path: write(path, [("a", struct.pack("<IQ", TEXT, HUGE))]),
        r"a ends at byte \d+, \d+ behind the end of the file: it is cut off, or damaged",
    ),
    "a long array": (
        lambda path: write(path, [("a", items(INT32, [1], HUGE))]),
        r"a ends at byte \d+, \d+ behind the end of the file",
    ),
    "many texts": (
        lambda path: write(path, [("a", items(TEXT, ["x"], HUGE))]),
        rf"a has {HUGE} texts, for which the file of \d+ bytes has no room",
    ),
    "more texts than there are": (
        lambda path: write(path, [("a", items(TEXT, ["x" * 20], 3))]),
        r"a is cut off at text 1 of 3: the file ends at byte \d+",
    ),
    "a long text of many": (
        lambda path: write(path, [("a", items(TEXT, ["x"])[:-9] + struct.pack("<Q", HUGE) + b"x")]),
        r"a ends at byte \d+, and the file at byte \d+: it is cut off, or damaged",
    ),
    "arrays of arrays": (
        lambda path: write(path, [("a", struct.pack("<IIQ", ARRAY, ARRAY, 1) + items(INT32, [1])[4:])]),
        r"a is an array of arrays, which is not read",
    ),
    "a bool of 2": (lambda path: write(path, [("a", value(BOOL, 2))]), r"a is of type bool, and holds another byte"),
    "alignment": (
        lambda path: write(path, [("general.alignment", value(UINT32, 24))]),
        r"general.alignment must be a power of two, got 24",
    ),
    "no dimensions": (lambda path: write(path, [], [tensor("t", [])], F32_DATA), r"'t' has 0 dimensions, and 1 to 4"),
    "five dimensions": (
        lambda path: write(path, [], [tensor("t", [1] * 5)], F32_DATA),
        r"tensor 't' has 5 dimensions, and 1 to 4 are allowed",
    ),
    "a dimension of 0": (
        lambda path: write(path, [], [tensor("t", [4, 0])], F32_DATA),
        r"tensor 't' has the shape \[0, 4\]; each dimension must be at least 1",
    ),
    "huge dimensions": (
        lambda path: write(path, [], [tensor("t", [HUGE, HUGE])], F32_DATA),
        r"tensor 't' needs \d+ bytes from byte \d+ on, and the file lacks \d+ of them: it is cut off",
    ),
    "rows of parts of blocks": (
        lambda path: write(path, [], [tensor("t", [48], 2)], F32_DATA),
        r"tensor 't' has rows of 48 values, and Q4_0 has blocks of 32",
    ),
    "a removed type": (
        lambda path: write(path, [], [tensor("t", [4], 4)], F32_DATA),
        r"type 4, which was removed from",
    ),
    "a new type": (lambda path: write(path, [], [tensor("t", [4], 43)], F32_DATA), r"type 43, which is newer than"),
    "a tensor twice": (
        lambda path: write(path, [], [tensor("t", [4]), tensor("t", [4], 0, 32)], F32_DATA),
        r"tensor 1 of 2 is 't', which is there twice",
    ),
    "between alignments": (
        lambda path: write(path, [], [tensor("t", [4], 0, 16)], F32_DATA),
        r"tensor 't' begins at byte 16 of the data, no multiple of the alignment 32",
    ),
    "behind the end": (
        lambda path: write(path, [], [tensor("t", [4], 0, 1 << 40)], F32_DATA),
        r"tensor 't' needs 16 bytes from byte \d+ on, and the file lacks \d+ of them",
    ),
    "cut off": (
        lambda path: write(path, [], [tensor("t", [4]), tensor("u", [4], 0, 32)], bytes(40)),
        r"tensor 'u' needs 16 bytes from byte \d+ on, and the file lacks 8 of them: it is cut off",
    ),
    "one over another": (
        lambda path: write(path, [], [tensor("t", [16]), tensor("u", [4], 0, 32)], F32_DATA),
        r"tensors 't' and 'u' overlap",
    ),
}


def _raw(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", LIES)
def test_what_a_file_cannot_hold_is_refused(name: str, tmp_path: Path) -> None:
    """Files come from strangers: a count that is believed is a loop without end, or all of the memory."""
    make, message = LIES[name]
    path = make(tmp_path / "lie.gguf")
    with pytest.raises(GGUFError, match=message) as refused:
        GGUFFile(path)
    assert "lie.gguf" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A pipe would be waited for, without end."""
    os.mkfifo(tmp_path / "pipe.gguf")
    for name, problem in (
        ("pipe.gguf", "is not a file"),
        ("none.gguf", "cannot be read: No such file"),
        (".", "is not a file"),
    ):
        with pytest.raises(GGUFError, match=problem):
            GGUFFile(tmp_path / name)


def test_values_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    """A text that is not UTF-8 is no fault of a file whose model does not need it."""
    keys = [
        ("a", items(TEXT, [b"ok", b"\xff"])),
        ("b", struct.pack("<I", TEXT) + text(b"\xfe")),
        ("c", value(UINT8, 7)),
    ]
    metadata = GGUFFile(write(tmp_path / "a.gguf", keys)).metadata
    assert metadata["c"] == 7
    with pytest.raises(GGUFError, match=r"a\[1\] is not UTF-8"):
        metadata.texts("a")
    with pytest.raises(GGUFError, match=r"b is not UTF-8: byte 0 is 0xfe"):
        metadata.text("b")


def test_values_of_another_type_are_named(tmp_path: Path) -> None:
    """An error shows what a key holds, but not a million numbers of it."""
    keys = [("n", value(UINT8, 7)), ("a", items(FLOAT32, [0.5] * 3)), ("t", items(TEXT, ["x"]))]
    metadata = GGUFFile(write(tmp_path / "a.gguf", keys)).metadata
    for ask, message in (
        (lambda: metadata.text("n"), "n must be a text, got 7"),
        (lambda: metadata.text("a"), "a must be a text, got an array of 3 float32"),
        (lambda: metadata.integer("a"), "a must be an integer of at least 0, got an array of 3 float32"),
        (lambda: metadata.flag("n", True), "n must be true or false, got 7"),
        (lambda: metadata.texts("a"), "a must be an array of texts, got an array of 3 float32"),
        (
            lambda: metadata.numbers("t", 1),
            "t must be an array of 1 numbers, one for each token, got an array of 1 text",
        ),
        (lambda: metadata.numbers("a", 4), "a must be an array of 4 numbers, one for each token, got an array of 3 fl"),
    ):
        with pytest.raises(GGUFError, match=message):
            ask()
    assert metadata.text("absent") is None
