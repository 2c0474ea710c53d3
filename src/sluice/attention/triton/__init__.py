"""Attention in Triton: paged, ragged, for CUDA devices from SM80 up, and in Triton's interpreter on any CPU.

A step is at most two calls over disjoint rows: `decode` (one query a row, keys cut into pieces of about equal work,
then reduced) and `extend` (tiles of queries against the keys that they see). Both walk over keys with `walk`.
Nothing here asks the device for a value, so every call can be captured in a CUDA graph.

Triton decides when this package is imported whether it compiles or interprets: set TRITON_INTERPRET=1 before.
"""
