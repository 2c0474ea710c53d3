"""Readers of recorded traffic: files of other projects and our own become arrivals."""
