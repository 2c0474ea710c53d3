"""ServedModel: a loaded model's tokenizer, names and formats of answers, and the `Service` of each of its engines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from sluice.assembly.explain import explain
from sluice.config import ConfigError, ServerConfig
from sluice.http.base.backend import Service
from sluice.http.base.early_tokenizer import EarlyTokenizer
from sluice.http.base.options import model_names
from sluice.http.base.parsers import choose_replies
from sluice.process.client import EngineClient
from sluice.process.wire import Ready
from sluice.text.parsers.choosing import NO_PARSER, Chosen
from sluice.text.tokenizer import Tokenizer
from sluice.types import seed_source


class ServedModel:
    """A model that is served, whichever engine computes it.

    Args:
        ready: what its first engine is like.
        given: names of the options that the user set.

    Raises:
        ConfigError: an adapter has a name of the model.
    """

    def __init__(self, server: ServerConfig, ready: Ready, tokenizer: Tokenizer, given: Collection[str]) -> None:
        self.names: Sequence[str] = model_names(server, ready.model)
        """Names of the model in the API."""
        for adapter in ready.adapters:
            if adapter.name in self.names:
                raise ConfigError(f"--lora-modules {adapter.name}={adapter.path}: the model has this name")
        self.tokenizer = tokenizer
        self.chosen: Chosen = choose_replies(server, tokenizer.chat_template_source)
        """How it writes calls and reasoning."""
        self._ready = ready
        self._server = with_choices(server, self.names, self.chosen)
        self._given = given
        self._new_seed = seed_source(ready.config.model.seed)

    @classmethod
    async def open(
        cls, server: ServerConfig, ready: Ready, folder: Path, tokenizers: EarlyTokenizer, given: Collection[str]
    ) -> ServedModel:
        """Open the tokenizer. The caller must `close` the model.

        Args:
            folder: of the tokenizer.
            tokenizers: reads it, or has read it.

        Raises:
            TokenizerError: it cannot be used.
            ConfigError: an adapter has a name of the model.
        """
        tokenizer = await tokenizers.of(folder)
        try:
            return cls(server, ready, tokenizer, given)
        except BaseException:
            tokenizer.close()
            raise

    def service(self, engine: Ready, client: EngineClient) -> Service:
        """Return the service with an engine."""
        # What is derived for the first engine is set for later ones.
        reasons = {**self._ready.reasons, **engine.reasons, **self.chosen.reasons}
        return Service(
            self.names,
            self.tokenizer,
            engine.limits,
            self.tokenizer.eos_token_ids.union(self._ready.eos_token_ids),
            client,
            explain(self._server, engine.config, reasons, self._given),
            engine.memory,
            engine.sampling_defaults,
            self._new_seed,
            self.chosen.format,
            engine.architecture,
            engine.stored,
        )

    def close(self) -> None:
        """End the tokenizer's process."""
        self.tokenizer.close()


def with_choices(server: ServerConfig, names: Sequence[str], chosen: Chosen) -> ServerConfig:
    """Return the options with what the loaded model decides."""
    return replace(
        server,
        served_model_name=",".join(names),
        tool_call_parser=chosen.tool_name or NO_PARSER,
        reasoning_parser=chosen.reasoning_name or NO_PARSER,
    )
