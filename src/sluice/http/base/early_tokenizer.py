"""EarlyTokenizer: the tokenizer of a model, read while the engine still loads the weights."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sluice.config import ServerConfig
from sluice.config.model import ModelConfig
from sluice.models.checkpoint import CheckpointError
from sluice.models.default_model import default_checkpoint, default_file
from sluice.text.tokenizer import Tokenizer
from sluice.text.tokenizer_files import GGUF, SUFFIX, has_tokenizer, load_tokenizer


class EarlyTokenizer:
    """The tokenizer of a model, which is begun to be read at once if it is on this machine.

    The place is known for sure when the engine is ready. If it is another place then, it is read again. To be made
    in the event loop; the caller must `close` it.

    Args:
        place: its folder, or its GGUF file; None: it is not known yet.
        chat_template: source of a template in place of the checkpoint's.
    """

    def __init__(self, server: ServerConfig, place: Path | None, chat_template: str | None) -> None:
        self._server = server
        self._chat_template = chat_template
        self._place = place
        self._begun = None if place is None else self._begin(place)

    async def of(self, folder: Path) -> Tokenizer:
        """Return the tokenizer of a folder. It is the caller's to close. Not to be called twice.

        Raises:
            TokenizerError: it cannot be used.
        """
        begun, self._begun = self._begun, None
        if begun is not None and self._place is not None and _is_same(self._place, folder):
            return await begun
        _close_when_done(begun)
        return await self._begin(folder)

    async def failure(self) -> None:
        """Wait until the tokenizer is read, if that was begun.

        Raises:
            TokenizerError: it cannot be used.
        """
        if self._begun is not None:
            await asyncio.shield(self._begun)

    def close(self) -> None:
        """Close the tokenizer, if nothing has asked for it."""
        _close_when_done(self._begun)

    def _begin(self, place: Path) -> asyncio.Task[Tokenizer]:
        reading = asyncio.to_thread(
            load_tokenizer,
            place,
            allow_special_tokens=self._server.allow_special_tokens,
            chat_template=self._chat_template,
        )
        return asyncio.create_task(reading, name="tokenizer")


def place_of(model: ModelConfig) -> Path | None:
    """Return the folder or the GGUF file of a model's tokenizer, if one of the options names it or it is the default
    model's, and it is on this machine."""
    name = model.tokenizer or model.model
    if not name:
        return _place_of_default(None if model.download_dir is None else Path(model.download_dir))
    place = Path(name).expanduser()
    is_there = (place.suffix == SUFFIX and place.is_file()) or (place.is_dir() and has_tokenizer(place))
    return place if is_there else None


def _place_of_default(cache: Path | None) -> Path | None:
    if default_file(cache) is None:
        return None
    try:
        return default_checkpoint(cache)
    except CheckpointError:  # the engine reports it
        return None


def _is_same(place: Path, folder: Path) -> bool:
    """Return whether the folder is the one that was read, or was made of the GGUF file that was read."""
    if place == folder:
        return True
    link = folder / GGUF
    return link.is_symlink() and link.readlink() == place.absolute()


def _close_when_done(begun: asyncio.Task[Tokenizer] | None) -> None:
    def close(done: asyncio.Task[Tokenizer]) -> None:
        if not done.cancelled() and done.exception() is None:
            done.result().close()

    if begun is not None:
        begun.add_done_callback(close)
