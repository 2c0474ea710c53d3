"""From a prompt of a call to the requests that the engine gets for it, within the limits of the service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sluice.engine.clock import micros_at
from sluice.http.base.backend import Service
from sluice.http.base.errors import bad_request, no_tier
from sluice.http.call.generate_call import TIERS, GenerateCall, Settled
from sluice.text.constraints import shapes
from sluice.types import SamplingParams, Submit
from sluice.types.request_limits import LimitError, TierDisabled
from sluice.types.shown import shown


def samples(
    service: Service, prompt: tuple[int, ...], call: GenerateCall[Any], settled: Settled, came_at: float
) -> list[Submit]:
    """Return the requests of one prompt: equal but for the sample's number, so they share its pages and its seed."""
    sampling = (_embedded if call.embeds else _resolved)(service, prompt, call, settled)
    priority_class = _class_of(service, call)
    queue_time, timeout = call.fields.max_queue_time, call.fields.timeout
    return [
        Submit(
            service.client.next_id(),
            prompt,
            sampling.of_sample(index),
            index,
            extra_key=settled.extra_key,
            priority=call.terms.priority,
            priority_class=priority_class,
            arrived=micros_at(came_at),
            itl_target=call.terms.itl_target,
            start_deadline=None if queue_time is None else came_at + queue_time,
            deadline=None if timeout is None else came_at + timeout,
            embeds=call.embeds,
            grammar=settled.grammar,
            adapter="" if settled.adapter is None else settled.adapter.digest,
        )
        for index in range(call.sampling.n)
    ]


def _class_of(service: Service, call: GenerateCall[Any]) -> str:
    """Return the class of a call's requests; "" where there are no classes, and a service tier has no effect.

    Raises:
        ApiError: 400, the priority and the service tier name two classes.
    """
    name, limits, tier = call.terms.priority_class, service.limits, call.fields.service_tier
    by_tier = TIERS.get(tier or "", "") if limits.classes else ""
    if name and by_tier and name != by_tier:
        raise bad_request(
            f"priority {name!r} and service_tier {shown(tier)}, which is {by_tier!r} here, contradict each other;"
            " send one of them",
            param="service_tier",
        )
    return limits.class_of(name or by_tier)


@contextmanager
def _refused(call: GenerateCall[Any]) -> Iterator[None]:
    """Turn what the limits refuse into the error of a call, by the names that its API has."""
    try:
        yield
    except TierDisabled as error:
        raise no_tier(str(error), call.names.get(error.param, error.param)) from error
    except LimitError as error:
        param = call.names.get(error.param, error.param)
        message = str(error) if error.param == "prompt" else str(error).replace(error.param, param, 1)
        raise bad_request(message, param=param, code=error.code) from error


def _embedded(service: Service, prompt: Sequence[int], call: GenerateCall[Any], settled: Settled) -> SamplingParams:
    with _refused(call):
        service.limits.check_priority(call.terms.priority, call.terms.priority_class)
        service.limits.check_embedded(prompt)
    return settled.sampling


def _resolved(service: Service, prompt: Sequence[int], call: GenerateCall[Any], settled: Settled) -> SamplingParams:
    asked, shape = settled.sampling, settled.shape
    with _refused(call):
        service.limits.check_priority(call.terms.priority, call.terms.priority_class)
        service.limits.check_itl_target(call.terms.itl_target)
        sampling = replace(asked, max_tokens=None) if call.fills_context else asked
        room = service.limits.check_sampling(prompt, sampling)
        if shape is not None:
            named = shapes.JsonSchema | shapes.Regex | shapes.Choice | shapes.Grammar
            service.limits.check_constraint(shape.place if isinstance(shape, named) else "response_format")
    if call.fills_context and asked.max_tokens is not None:
        sampling = replace(asked, max_tokens=min(asked.max_tokens, room))
    room = service.sampling_defaults.room(sampling, room)
    return sampling.resolved(eos_ids=service.eos_token_ids, room=room, seed=service.new_seed())
