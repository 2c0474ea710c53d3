"""The default model, for tests that need a real one. `make setup` downloads it; without it they are skipped."""

from __future__ import annotations

import pytest

from sluice.models.default_model import NAME, default_file

needs_real_model = pytest.mark.skipif(
    default_file(None) is None, reason=f"{NAME} is not on this machine: make setup downloads it"
)
