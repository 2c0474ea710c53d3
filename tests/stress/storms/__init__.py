"""The parts of `tests/stress/storm.py`: requests, clients, comparison, blows, checks and rounds."""
