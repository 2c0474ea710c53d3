"""GGUF files: their metadata, the table of their tensors, and the tokenizer that their metadata describes.

Reading a file takes the standard library alone. A file comes from a stranger. So every count, length and offset in it
is compared with the size of the file before anything is allocated or repeated by it, and a file that does not hold
what it says is refused in one sentence.
"""
