"""The parts of `benchmarks/storm.py`: requests, clients, comparison, blows, checks and rounds."""
