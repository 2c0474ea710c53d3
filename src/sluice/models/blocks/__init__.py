"""Blocks that families are made of: attention, MLPs, experts and states, each with its rules of sharding."""
