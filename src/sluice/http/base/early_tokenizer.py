"""EarlyTokenizer: the tokenizer of a model, read while the engine still loads the weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from sluice.config import ServerConfig
from sluice.config.model import ModelConfig
from sluice.models.checkpoint import CheckpointError
from sluice.models.default_model import default_checkpoint, default_file
from sluice.models.formats.gguf_folder import gguf_at
from sluice.text.tokenizer import Tokenizer, TokenizerError
from sluice.text.tokenizer_files import GGUF, has_tokenizer, load_tokenizer

SNAPSHOT = "tokenizer.json"
"""File by which the folder of a hub id is found in the hub's cache."""


def nowhere() -> None:
    """Return that no place is known."""


class EarlyTokenizer:
    """The tokenizer of a model, which is begun to be read at once if it is on this machine.

    The place is known for sure when the engine is ready. If it is another place then, it is read again. To be made
    in the event loop; the caller must `close` it.

    Args:
        place: its folder, or its GGUF file; None: it is not known yet.
        chat_template: source of a template in place of the checkpoint's.
        guess: returns where it may be, if no place is known. Called in a thread.
    """

    def __init__(
        self,
        server: ServerConfig,
        place: Path | None,
        chat_template: str | None,
        guess: Callable[[], Path | None] = nowhere,
    ) -> None:
        self._server = server
        self._chat_template = chat_template
        self._place = place
        self._is_sure = place is not None
        begun = self._guessed(guess) if place is None else asyncio.to_thread(self._load, place)
        self._begun: asyncio.Task[Tokenizer | None] | None = asyncio.create_task(begun, name="tokenizer")

    async def of(self, folder: Path) -> Tokenizer:
        """Return the tokenizer of a folder. It is the caller's to close. Not to be called twice.

        Raises:
            TokenizerError: it cannot be used.
        """
        begun, self._begun = self._begun, None
        if begun is not None and (not self._is_sure or self._is_same(folder)):
            early = await begun
            if early is not None and self._is_same(folder):
                return early
        _close_when_done(begun)
        return await asyncio.to_thread(self._load, folder)

    async def failure(self) -> None:
        """Wait until the tokenizer is read, if it is known where it is.

        Raises:
            TokenizerError: it cannot be used.
        """
        if self._begun is not None and self._is_sure:
            await asyncio.shield(self._begun)

    def close(self) -> None:
        """Close the tokenizer, if nothing has asked for it."""
        _close_when_done(self._begun)

    async def _guessed(self, guess: Callable[[], Path | None]) -> Tokenizer | None:
        self._place = await asyncio.to_thread(guess)
        try:
            return None if self._place is None else await asyncio.to_thread(self._load, self._place)
        except TokenizerError:
            return None  # the engine may find another one

    def _load(self, place: Path) -> Tokenizer:
        return load_tokenizer(
            place, allow_special_tokens=self._server.allow_special_tokens, chat_template=self._chat_template
        )

    def _is_same(self, folder: Path) -> bool:
        """Return whether the folder is the one that was read, or was made of the GGUF file that was read."""
        if self._place == folder:
            return True
        link = folder / GGUF
        return self._place is not None and link.is_symlink() and link.readlink() == self._place.absolute()


def place_of(model: ModelConfig) -> Path | None:
    """Return the folder or the GGUF file of a model's tokenizer, if one of the options names it or it is the default
    model's, and it is on this machine."""
    name = model.tokenizer or model.model
    if not name:
        return _place_of_default(model.cache)
    place = Path(name).expanduser()
    if place.is_dir() and has_tokenizer(place):
        return place
    try:
        return gguf_at(place)
    except CheckpointError:
        return None


def _place_of_default(cache: Path | None) -> Path | None:
    if default_file(cache) is None:
        return None
    try:
        return default_checkpoint(cache)
    except CheckpointError:  # the engine reports it
        return None


def cached_place(model: ModelConfig) -> Path | None:
    """Return the folder of a hub id's tokenizer in the hub's cache, if the id was downloaded before.

    It may be that of an older revision than the engine will find.
    """
    from huggingface_hub import try_to_load_from_cache  # imported when it is used: it takes a tenth of a second
    from huggingface_hub.errors import HFValidationError

    name = model.tokenizer or model.model
    revision = model.revision if model.tokenizer is None else None
    try:
        found = try_to_load_from_cache(name, SNAPSHOT, cache_dir=model.download_dir, revision=revision)
    except HFValidationError:  # no hub id
        return None
    return Path(found).parent if isinstance(found, str) else None


def _close_when_done(begun: asyncio.Task[Tokenizer | None] | None) -> None:
    def close(done: asyncio.Task[Tokenizer | None]) -> None:
        if not done.cancelled() and done.exception() is None and (tokenizer := done.result()) is not None:
            tokenizer.close()

    if begun is not None:
        begun.add_done_callback(close)
