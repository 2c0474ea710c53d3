"""Print the tables of docs/long-contexts.md: memory and time of a context longer than the device, from formulae.

python benchmarks/long_context_tables.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.long_context.tables import (
    CHUNK,
    CPU,
    CPU_CHUNK,
    CPU_LENGTHS,
    GPU,
    MODEL,
    RECALL,
    hiding,
    memory_table,
    time_table,
)


def main() -> None:
    print(memory_table(), end="\n\n")
    print(time_table(MODEL, GPU, CHUNK), end="\n\n")
    print(time_table(RECALL, CPU, CPU_CHUNK, CPU_LENGTHS), end="\n\n")
    print(f"copies hide behind attention with chunks of at least {hiding(MODEL, GPU)}")


if __name__ == "__main__":
    main()
