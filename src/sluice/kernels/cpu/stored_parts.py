"""Reads stored pages with the compiled library, and checks them. Python's lock is released meanwhile.

A *part* is one layer of a page: its keys, and behind them its values.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.kernels.cpu.abi import ReadOutcome, ReadPartsCall
from sluice.kernels.cpu.library import Library


class PartsRead(NamedTuple):
    """How a read of parts ended."""

    outcome: ReadOutcome
    part: int
    """The first part that is not there, or is not what was stored."""
    found: int
    """Checksum that was found, if it differs."""
    error: int
    """The system's reason, if the read failed."""


class StoredParts:
    """Checksums and reads of parts. Any thread may call it beside others."""

    def __init__(self, library: Library) -> None:
        self._functions = library.functions

    def crc32c(self, data: memoryview, crc: int = 0, *, portable: bool = False) -> int:
        """Return the CRC-32C of what has the checksum `crc`, followed by `data`.

        Args:
            portable: compute it without the processor's instruction.
        """
        array = np.frombuffer(data, dtype=np.uint8)
        address = array.__array_interface__["data"][0]
        return int(self._functions.sluice_crc32c(crc, address, array.size, portable))

    def read(
        self,
        descriptor: ctypes.c_int32,
        offsets: npt.NDArray[np.int64],
        expected: npt.NDArray[np.uint32],
        k: memoryview,
        v: memoryview,
    ) -> PartsRead:
        """Read parts of a file and compare their checksums.

        Args:
            descriptor: of the file. It is read anew before each call of the system, and may become negative meanwhile:
                nothing more is read then.
            offsets: [parts], where each begins in the file.
            expected: [parts], the CRC-32C of each.
            k: writable memory of all keys, one part after the other.
            v: that of all values.
        """
        count = len(offsets)
        assert k.nbytes == v.nbytes and k.nbytes % count == 0, f"{count} parts into {k.nbytes} and {v.nbytes} bytes"
        assert len(expected) == count, f"{len(expected)} checksums of {count} parts"
        call = ReadPartsCall(
            ctypes.addressof(descriptor),
            offsets.__array_interface__["data"][0],
            expected.__array_interface__["data"][0],
            _address(k),
            _address(v),
            k.nbytes // count,
            count,
        )
        outcome = ReadOutcome(self._functions.sluice_read_parts(ctypes.byref(call)))
        return PartsRead(outcome, call.part, call.found, call.error)


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
