"""What the routes serve with: nothing while the model loads, then a `Service`, nothing once the engine is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.explain import Setting
from sluice.limits import Limits
from sluice.server.client import EngineClient
from sluice.server.errors import ApiError, unavailable
from sluice.server.tokens import Tokenizer


@dataclass(frozen=True)
class Service:
    """A loaded model: its name in the API, its tokenizer, its limits, the way to its engine, and how it was set up."""

    model: str
    tokenizer: Tokenizer
    limits: Limits
    eos_token_ids: frozenset[int]
    client: EngineClient
    engine_pid: int
    settings: Sequence[Setting]

    def check_model(self, asked: str | None) -> None:
        """
        Raises:
            ApiError: 404, a request for another model.
        """
        if asked is not None and asked != self.model:
            raise ApiError(
                404,
                f"the model {asked!r} does not exist; this server has {self.model!r}",
                param="model",
                code="model_not_found",
            )


class Backend:
    """The service, or why there is none."""

    def __init__(self) -> None:
        self._service: Service | None = None
        self._closed = False
        self.status = "the model is loading"

    def open(self, service: Service) -> None:
        """Requests can be served from now on."""
        self._service = service
        self.status = "ok"

    def close(self, reason: str) -> None:
        """Nothing can be served any more: what runs ends with an error that says why. The first reason stays."""
        if self._closed:
            return
        self._closed = True
        self.status = reason
        if self._service is not None:
            self._service.client.fail(reason)
            self._service = None

    @property
    def is_open(self) -> bool:
        return self._service is not None

    def service(self) -> Service:
        """
        Raises:
            ApiError: 503, there is none.
        """
        if self._service is None:
            raise unavailable(self.status)
        return self._service
