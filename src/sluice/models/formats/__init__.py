"""Formats in which published checkpoints store quantised weights, and how they are read."""
