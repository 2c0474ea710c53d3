"""What this distribution is called, and its version."""

DISTRIBUTION = "sluice-llm"
"""Its name on the package index, where `sluice` is another project."""
VERSION = "0.1.0"
