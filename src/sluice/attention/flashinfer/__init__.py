"""Attention by FlashInfer, an optional package that compiles its kernels when they are first used.

Written against the documented interface of version 0.6.18 (`api.py` holds all of it that is used). A step is planned
once on the host, per kind of layer, and every layer of the kind runs by that plan.
"""
