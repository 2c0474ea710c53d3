"""Hypothesis profiles: `ci` repeats the same examples every run and does not shrink; `dev` searches and shrinks.

Without an NVIDIA device Triton's kernels are interpreted, which has to be said before anything imports one of them.
"""

import os
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings

NEVER_SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=NEVER_SLOW,
    print_blob=True,
)
settings.register_profile("dev", deadline=None, suppress_health_check=NEVER_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
