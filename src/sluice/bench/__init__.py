"""Measure a server, or the engine in this process, under a stated workload: `sluice bench` and `sluice compare`.

    options -> workload -> driver -> target -> answers -> records -> metrics -> table, JSON, HTML
    what       what is     when it   HTTP or   tokens     a result   numbers
    was asked  sent        is sent   engine    and times  file

`lengths`, `arrivals`, `prompts`, `workload`, `records` and `metrics` know no HTTP, no asyncio and no clock, so a
simulation can use the same workloads and have its numbers made by the same code.
"""
