"""Chunks of contexts longer than the device: their KV stays on a lower tier and passes through a ring."""
