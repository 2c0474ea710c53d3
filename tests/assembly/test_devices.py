"""What computes on a CUDA device, and what is said where nothing does."""

from __future__ import annotations

import pytest

from sluice.assembly.devices import CudaDevice, check_device, pick_device, why_no_triton
from sluice.config import ConfigError

ARCHS = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_120", "compute_120")


def device(major: int, minor: int, *, archs: tuple[str, ...] = ARCHS, has_triton: bool = True) -> CudaDevice:
    return CudaDevice("A GPU", (major, minor), archs, has_triton)


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0), (12, 1), (13, 0)])
def test_what_torch_was_built_for(capability: tuple[int, int]) -> None:
    """Code for 8.6 runs on 8.9, and what is compiled on the spot on everything newer."""
    check_device(device(*capability))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (device(6, 1), "A GPU has compute capability 6.1, and torch .* was built for sm_75, .*--device cpu"),
        (device(7, 0), "has compute capability 7.0"),
        (device(10, 0), "has compute capability 10.0"),
        (device(9, 1, archs=("sm_90a",)), "has compute capability 9.1"),
        (device(13, 0, archs=("sm_120",)), "has compute capability 13.0"),
        (device(9, 0, archs=()), "no CUDA device"),
    ],
)
def test_a_device_that_torch_has_no_kernels_for(found: CudaDevice, message: str) -> None:
    """Otherwise the first step would report it, with an error about kernel images."""
    with pytest.raises(ConfigError, match=message):
        check_device(found)


def test_where_triton_computes() -> None:
    assert why_no_triton(device(8, 0)) is None
    assert why_no_triton(device(12, 0)) is None
    assert "need compute capability 8.0 or newer, A GPU has 7.5" in str(why_no_triton(device(7, 5)))
    assert "pip install" in str(why_no_triton(device(9, 0, has_triton=False)))


def test_a_machine_without_such_a_device() -> None:
    with pytest.raises(ConfigError, match=r"--device cuda:999: this machine has .* usable CUDA devices; --device cpu"):
        pick_device("cuda:999")
