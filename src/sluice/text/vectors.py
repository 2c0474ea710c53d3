"""Embeddings as vectors of length 1, whose inner product is the cosine of their angle."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


def unit_vector(embedding: bytes, dimensions: int | None = None) -> Vector:
    """Return an embedding as a vector of length 1, [dimensions] float32.

    Args:
        embedding: as `Output.embedding`.
        dimensions: of its beginning, for models whose embeddings may be cut (Kusupati et al., "Matryoshka
            Representation Learning", 2022); None: all.
    """
    vector = np.frombuffer(embedding, dtype="<f4")[:dimensions].astype(np.float64)
    length = np.linalg.norm(vector)
    return (vector / length if length else vector).astype(np.float32)


def cosine(one: Vector, other: Vector) -> float:
    """Return the cosine of the angle of two vectors of length 1, from -1 to 1."""
    return float(np.clip(one.astype(np.float64) @ other.astype(np.float64), -1.0, 1.0))
