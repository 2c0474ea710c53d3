"""Reads the container format GGUF: its metadata and the table of its tensors, with the standard library alone.

A file comes from a stranger. So every count, length and offset in it is compared with the size of the file before
anything is allocated or repeated by it, and a file that does not hold what it says is refused in one sentence.
"""
