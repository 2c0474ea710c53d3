"""What this distribution is called, and its version."""

from pathlib import Path

DISTRIBUTION = "sluice-llm"
"""Name of the distribution on the package index, where `sluice` is another project."""
_FILE = Path(__file__).with_name("version.txt")
"""Written by setuptools-scm when the package is built or installed, from the latest tag and the commits since."""
VERSION = _FILE.read_text().strip() if _FILE.exists() else "0.0.0+unknown"
