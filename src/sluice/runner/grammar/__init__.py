"""Grammars that constrain what a request generates: compiled, cached, and followed token by token.

`base` is what the rest of Sluice knows of a grammar; `guidance` does the work with llguidance; `compiler`
compiles on threads of its own.
"""
