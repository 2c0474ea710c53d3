"""What the routes serve with: a `Service` once the model is loaded, and none before that or after the last engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sluice.assembly.explain import Setting
from sluice.http.base.errors import RETRY_SECONDS, ApiError, unavailable
from sluice.http.base.model_names import is_same
from sluice.http.base.progress import PromptQueries
from sluice.process.client import EngineClient
from sluice.process.engine_state import LOADING, SLEEPING, EngineState
from sluice.process.sleep import PUT_TO_SLEEP
from sluice.text.parsers.replies import PLAIN, ReplyFormat
from sluice.text.tokenizer import Tokenizer
from sluice.types import AdapterInfo, SamplingDefaults, seed_source
from sluice.types.footprint import Footprint
from sluice.types.request_limits import Limits
from sluice.types.shown import shown
from sluice.types.stored_weights import StoredWeights


@dataclass(frozen=True)
class Service:
    """A loaded model: its names in the API, its tokenizer and limits, the client of its engine, and its options."""

    models: Sequence[str]
    tokenizer: Tokenizer
    limits: Limits
    eos_token_ids: frozenset[int]
    client: EngineClient
    settings: Sequence[Setting]
    memory: Footprint
    """What the engine allocated."""
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    """What requests get for the sampling parameters that they leave open."""
    new_seed: Callable[[], int] = field(default_factory=partial(seed_source, None))
    """Gives the seeds of requests without one."""
    replies: ReplyFormat = PLAIN
    """How the model writes calls and reasoning."""
    architecture: str = ""
    """The name in the checkpoint's `config.json`."""
    stored: StoredWeights = field(default_factory=StoredWeights)
    """The weights in the checkpoint's files."""
    prompts: PromptQueries | None = field(default_factory=PromptQueries)
    """How far prompts are read; None: the engine does not tell this by the numbers of its requests."""

    @property
    def model(self) -> str:
        """The first name, which answers have."""
        return self.models[0]

    @property
    def adapters(self) -> Mapping[str, AdapterInfo]:
        """The adapters of the model by name. Requests name them in the place of the model."""
        return self.client.adapters.by_name

    def adapter_of(self, model: str | None, *, param: str = "model") -> AdapterInfo | None:
        """Return the adapter that a request is for; None: it is for the model alone.

        Args:
            model: the name that it has; SGLang's clients send `MODEL:ADAPTER`.
            param: the field that has it.

        Raises:
            ApiError: 404, neither the model nor an adapter has this name.
        """
        if model is None or any(is_same(model, own) for own in self.models):
            return None
        for name, info in self.adapters.items():
            if is_same(model, name) or any(model == f"{own}:{name}" for own in self.models):
                return info
        raise ApiError(
            404,
            f"the model {shown(model)} does not exist; this server has"
            f" {' and '.join(map(repr, [*self.models, *self.adapters]))}",
            param=param,
            code="model_not_found",
        )

    def check_model(self, model: str | None) -> None:
        """Refuse a request for another model.

        Raises:
            ApiError: 404.
        """
        self.adapter_of(model)


class Backend:
    """The service, or why there is none.

    Args:
        engine: the state of the engine.
    """

    def __init__(self, engine: EngineState | None = None) -> None:
        self.engine = EngineState() if engine is None else engine
        self._service: Service | None = None
        self._closed: str | None = None
        self._is_draining = False
        self._enders: list[Callable[[], None]] = []

    def at_end(self, end: Callable[[], None]) -> None:
        """Call a function when the server begins to end: calls that have no end of their own are to end then."""
        self._enders.append(end)

    def open(self, service: Service) -> None:
        """Serve requests from now on, unless the backend is closed. A later service takes the place of this one."""
        if self._closed is None:
            self._service = service

    def drain(self) -> None:
        """Refuse new requests; those that run continue."""
        self._is_draining = True
        self._end_the_endless()

    def close(self, reason: str) -> None:
        """Refuse all requests, and end those that run with an error that gives the reason. The first reason stays."""
        if self._closed is not None:
            return
        self._closed = reason
        self._end_the_endless()
        if self._service is not None:
            self._service.client.fail(reason)
            self._service = None

    def _end_the_endless(self) -> None:
        for end in self._enders:
            end()

    @property
    def is_closed(self) -> bool:
        return self._closed is not None

    @property
    def has_service(self) -> bool:
        """A model was loaded and the server is not closed, although there may be no engine at the moment."""
        return self._service is not None

    @property
    def is_ready(self) -> bool:
        """New requests are taken, and an engine works on them, or is started by the next one."""
        engine = self.engine
        return self._is_open and not engine.is_put_to_sleep and (engine.is_serving or engine.is_asleep)

    @property
    def is_well(self) -> bool:
        """Nothing is wrong: it is ready, or was put to sleep."""
        return self._is_open and (self.engine.is_serving or self.engine.is_asleep)

    @property
    def _is_open(self) -> bool:
        return self._service is not None and not self._is_draining

    @property
    def status(self) -> str:
        """Either "ok" or why it is not ready."""
        if self._closed is not None:
            return self._closed
        if self._is_draining:
            return "the server is shutting down"
        if self._service is not None and (self.engine.is_serving or self.engine.is_asleep):
            return SLEEPING if self.engine.is_asleep or self.engine.is_put_to_sleep else "ok"
        status = LOADING if self._service is None else self.engine.status
        return status if self.engine.loading is None else f"{status}: {self.engine.loading}"

    def service(self, *, for_new: bool = False) -> Service:
        """Return the service.

        Args:
            for_new: a new request is to be generated for, which is refused while the server drains or no engine can be
                started.

        Raises:
            ApiError: 503, there is none, or it was put to sleep.
        """
        if self._service is None or (for_new and (self._is_draining or self.engine.is_refusing)):
            raise unavailable(self.status)
        if for_new and self.engine.is_put_to_sleep:
            raise ApiError(503, f"cannot serve requests: {PUT_TO_SLEEP}", code="sleeping", retry_after=RETRY_SECONDS)
        return self._service
