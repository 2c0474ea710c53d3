"""Measure a server, or the engine in this process, under a stated workload: `sluice bench` and `sluice compare`.

    options -> workload -> driver -> http, openai  -> records -> metrics -> report, html, compare
                                     engine_target    results

`workload`, `records` and `metrics` know no HTTP, no asyncio and no clock, so a simulation can send the same workloads
and compute its numbers with the same code.
"""


class BenchError(RuntimeError):
    """A measurement that cannot be made, or a file that holds none. The message is for the user."""
