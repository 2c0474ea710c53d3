"""What a page file holds, even while an engine uses it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sluice.storage.blocks import FileBlocks
from sluice.storage.opening import open_to_look
from sluice.storage.page_file import PageFile, read_index, restored
from sluice.storage.page_file_format import BLOCK, FileLayout, PageFileError, PageLost, decode_header, split
from sluice.types import StoredPage


@dataclass(frozen=True, slots=True)
class Namespace:
    """The pages of one extra key. The key itself is not shown: it may be a secret of its tenant."""

    pages: int
    prompts: int
    """Pages that no other page follows."""
    longest: int
    """Tokens from the beginning to the end of the longest prompt."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """The contents of a page file."""

    path: str
    layout: FileLayout
    entries: int
    """Pages that have a whole entry."""
    namespaces: tuple[Namespace, ...]
    """The pages that an engine would restore, the largest namespace first."""
    damaged: tuple[str, ...] | None
    """What is wrong with stored pages; None if they were not read."""

    @property
    def pages(self) -> int:
        """Number of pages that an engine would restore."""
        return sum(namespace.pages for namespace in self.namespaces)

    def as_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "geometry": asdict(self.layout.geometry),
            "file_bytes": self.layout.file_bytes,
            "page_bytes": self.layout.geometry.page_bytes,
            "slots": self.layout.num_pages,
            "entries": self.entries,
            "pages": self.pages,
            "namespaces": [asdict(namespace) for namespace in self.namespaces],
            "damaged": None if self.damaged is None else list(self.damaged),
        }


def inspect(path: Path, *, verify: bool) -> Inspection:
    """Return the contents of a page file.

    Args:
        verify: read every page and compare checksums.

    Raises:
        PageFileError: it cannot be read, or is no page file.
    """
    descriptor = open_to_look(path)
    blocks = FileBlocks(descriptor)
    try:
        layout = decode_header(os.pread(descriptor, BLOCK, 0))
        index = read_index(blocks, layout).entries
        damaged = None
        if verify:
            damaged = tuple(_damaged(PageFile(blocks, layout, index), sorted(index)))
        return Inspection(str(path), layout, len(index), _namespaces(restored(index), layout), damaged)
    except (ValueError, PageLost) as error:
        raise PageFileError(f"{path} {error}") from error
    except OSError as error:
        raise PageFileError(f"{path} cannot be read: {error.strerror}") from error
    finally:
        blocks.close()


def _damaged(file: PageFile, pages: Sequence[int]) -> list[str]:
    geometry = file.layout.geometry
    buffers = split(memoryview(bytearray(geometry.page_bytes)), geometry.part_bytes)
    problems = []
    for page in pages:
        try:
            file.read(page, buffers)
        except (PageLost, OSError) as error:
            problems.append(str(error))
    return problems


def _namespaces(pages: Sequence[StoredPage], layout: FileLayout) -> tuple[Namespace, ...]:
    depth = {b"": 0}
    for page in pages:
        depth[page.key.digest] = depth[page.key.parent] + 1
    parents = {page.key.parent for page in pages}
    counts = Counter(page.key.extra_key for page in pages)
    own = {key: [page.key.digest for page in pages if page.key.extra_key == key] for key in counts}
    return tuple(
        Namespace(
            pages=count,
            prompts=sum(digest not in parents for digest in own[key]),
            longest=layout.geometry.page_size * max(depth[digest] for digest in own[key]),
        )
        for key, count in counts.most_common()
    )


def report(found: Inspection) -> str:
    """Return the contents as lines of text."""
    geometry, layout = found.layout.geometry, found.layout
    lines = [
        f"file        {layout.file_bytes / 2**20:.1f} MiB, room for {layout.num_pages} pages"
        f" ({layout.num_pages * geometry.page_size} tokens)",
        f"page        {geometry.page_size} tokens, {geometry.page_bytes} bytes: {geometry.num_layers} layers,"
        f" {geometry.num_kv_heads} KV heads of {geometry.head_dim}, {geometry.dtype}, layout {geometry.layout}",
        f"model       {geometry.model[:16]}, computed by {geometry.code}",
        f"stored      {found.pages} pages ({found.pages * geometry.page_size} tokens) that a start would restore,"
        f" {found.entries - found.pages} that hang from nothing",
    ]
    for number, space in enumerate(found.namespaces):
        lines.append(
            f"namespace {number} {space.pages} pages, {space.prompts} ends, the longest prefix {space.longest} tokens"
        )
    if found.damaged is not None:
        lines.append(f"checksums   {len(found.damaged)} of {found.entries} pages are damaged")
        lines += [f"            {problem}" for problem in found.damaged]
    return "\n".join(lines)
