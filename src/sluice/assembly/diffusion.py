"""Options of models of block diffusion: what they change in a checkpoint, and what such a model changes in others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sluice.assembly.ranks import layout_of, shown_sizes
from sluice.assembly.resolve import MAX_PAGE_SIZE, UNCHUNKED_BATCH_TOKENS, Resolution, page_limits
from sluice.config import ConfigError, DiffusionConfig, EngineConfig, flag, itl_micros
from sluice.models.registry import DIFFUSION_ARCHITECTURES
from sluice.models.spec import BlockDiffusion, ModelSpec
from sluice.runner.open_blocks import Denoising, Strategy, Unmasking
from sluice.types import SchedulerLimits

OPTION = "--dllm-algorithm-config"
THRESHOLD = 0.95
"""Default of SGLang's LowConfidence."""
PREFILL_BY_BLOCK = "block"


@dataclass(frozen=True, slots=True)
class AlgorithmConfig:
    """What `--dllm-algorithm-config` says. None: it says nothing."""

    threshold: float | None = None
    denoising_steps: int | None = None
    block_size: int | None = None
    mask_id: int | None = None

    @classmethod
    def read(cls, given: str | None) -> AlgorithmConfig:
        """Read a file, or JSON.

        Raises:
            ConfigError: it cannot be read, or a value is not accepted.
        """
        if given is None:
            return cls()
        values = _parsed(given if given.lstrip().startswith("{") else _content(given))
        known = [item.name for item in fields(cls)]
        unknown = next((name for name in values if name not in known), None)
        if unknown is not None:
            raise ConfigError(f"{OPTION}: {unknown} is not supported; supported are {', '.join(known)}")
        threshold = values.get("threshold")
        if threshold is not None and not (_is_number(threshold) and 0 <= threshold <= 1):
            raise ConfigError(f"{OPTION}: threshold must be a probability from 0 to 1, got {threshold!r}")
        for name, least in (("denoising_steps", 1), ("block_size", 1), ("mask_id", 0)):
            value = values.get(name)
            if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and value >= least):
                raise ConfigError(f"{OPTION}: {name} must be an integer of at least {least}, got {value!r}")
        return cls(**values)

    @property
    def of_checkpoint(self) -> Mapping[str, object]:
        """Fields of `config.json` that it replaces."""
        given = {"block_size": self.block_size, "mask_token_id": self.mask_id}
        return {name: value for name, value in given.items() if value is not None}


def check_architecture(config: EngineConfig, architecture: str) -> AlgorithmConfig:
    """Check that the options have an effect, before weights are loaded. Return the algorithm's parameters.

    Raises:
        ConfigError: one is set, and the model generates token by token; or it cannot be honoured.
    """
    if architecture in DIFFUSION_ARCHITECTURES:
        if config.model.model_impl == "transformers":
            raise ConfigError(f"--model-impl transformers cannot serve {architecture}; take native")
        return AlgorithmConfig.read(config.diffusion.dllm_algorithm_config)
    for item in fields(config.diffusion):
        if (value := getattr(config.diffusion, item.name)) is not None:
            accepted = ", ".join(DIFFUSION_ARCHITECTURES)
            raise ConfigError(
                f"{flag(item.name)} {value} needs a model of block diffusion ({accepted}), this one is a {architecture}"
            )
    return AlgorithmConfig()


def with_pages_of_blocks(resolved: Resolution, spec: ModelSpec) -> Resolution:
    """Return the options with a page size that was left open raised to the block of a model of block diffusion.

    They stay as they are if no page can hold it, or if a size that was set is below it: `with_diffusion` refuses them.

    Args:
        resolved: as far as the model's type is not needed.
    """
    config, reasons = resolved.config, resolved.reasons
    page_size, scheduler = config.cache.page_size, config.scheduler
    assert page_size is not None, f"not resolved: {config}"
    block = 1 if spec.diffusion is None else spec.diffusion.block_size
    if block <= page_size or block > MAX_PAGE_SIZE or block & (block - 1) or "page_size" not in reasons:
        return resolved
    sizes = ("chunked_prefill_size", "max_batch_tokens", "max_running_requests")
    derived: dict[str, Any] = {name: None for name in sizes if name in reasons}
    if any(limit < block for limit in page_limits(replace(scheduler, **derived), config.cache).values()):
        return resolved
    changed = {"page_size": "the model's block_size"}
    chunk = scheduler.chunked_prefill_size
    if chunk and chunk < block and "chunked_prefill_size" in reasons:
        changed["chunked_prefill_size"] = "one page"
        scheduler = replace(scheduler, chunked_prefill_size=block)
    cache = replace(config.cache, page_size=block)
    return resolved.because(replace(config, cache=cache, scheduler=scheduler), **changed)


def with_diffusion(resolved: Resolution, spec: ModelSpec) -> Resolution:
    """Return the options of a model of block diffusion, all resolved; of another model as they are.

    Args:
        resolved: as far as the model's type is not needed.

    Raises:
        ConfigError: an option that such a model cannot honour.
    """
    if spec.diffusion is None:
        return resolved
    config, given = resolved.config, resolved.config.diffusion
    _refuse(config, spec.architecture, spec.diffusion.block_size, resolved.reasons)
    denoising = denoising_of(given, spec.diffusion)
    rule, model = denoising.unmasking, denoising.model
    why = {
        "dllm_algorithm": "default",
        "dllm_prefill": "default",
        "dllm_algorithm_config": "the model's, and defaults",
    }
    why = {name: reason for name, reason in why.items() if getattr(given, name) is None}
    threshold = rule.threshold if rule.strategy is Strategy.DYNAMIC else None
    shown = AlgorithmConfig(threshold, rule.steps, model.block_size, model.mask_token_id)
    values = {item.name: value for item in fields(shown) if (value := getattr(shown, item.name)) is not None}
    diffusion = DiffusionConfig(str(rule.strategy), json.dumps(values), given.dllm_prefill or "chunks")
    return _with_room_for_blocks(resolved.because(replace(config, diffusion=diffusion), **why), model.block_size)


def denoising_of(config: DiffusionConfig, model: BlockDiffusion) -> Denoising:
    """Return how a model's blocks are filled.

    Raises:
        ConfigError: more steps than a block has tokens.
    """
    given = AlgorithmConfig.read(config.dllm_algorithm_config)
    steps = given.denoising_steps or model.block_size
    if steps > model.block_size:
        raise ConfigError(
            f"{OPTION}: denoising_steps must be at most block_size {model.block_size}, got {steps}: each pass fills in"
            " a token at least"
        )
    strategy = Strategy(config.dllm_algorithm or Strategy.DYNAMIC)
    if given.threshold is not None and strategy is not Strategy.DYNAMIC:
        raise ConfigError(f"{OPTION}: threshold {given.threshold} has no effect with --dllm-algorithm {strategy}")
    threshold = THRESHOLD if given.threshold is None else given.threshold
    return Denoising(model, Unmasking(strategy, threshold, steps))


def with_blocks(limits: SchedulerLimits, config: DiffusionConfig, spec: ModelSpec) -> SchedulerLimits:
    """Return the scheduler's limits for a model."""
    if spec.diffusion is None:
        return limits
    by_block = config.dllm_prefill == PREFILL_BY_BLOCK
    return replace(limits, block_size=spec.diffusion.block_size, prefills_by_block=by_block)


def _refuse(config: EngineConfig, architecture: str, block_size: int, reasons: Mapping[str, str]) -> None:
    """Refuse options that a model of block diffusion cannot honour."""
    scheduler, page_size = config.scheduler, config.cache.page_size
    assert page_size is not None, f"not resolved: {config}"
    if page_size % block_size:
        raise ConfigError(
            f"--page-size must be a multiple of the model's block_size {block_size}, got {page_size}: pages are shared"
            f" by prompts that begin alike, and what a page holds depends on the whole of its blocks"
        )
    if layout_of(config.parallel).size > 1:
        raise ConfigError(
            f"{shown_sizes(config.parallel)} is not supported by a model of block diffusion ({architecture}): one rank"
            " denoises its blocks"
        )
    if (algorithm := config.speculative.speculative_algorithm) is not None:
        raise ConfigError(
            f"--speculative-algorithm {algorithm} is not supported by a model of block diffusion ({architecture}):"
            " a pass draws several tokens anyway; leave it out"
        )
    if scheduler.lookahead:
        given = "--enable-overlap" if scheduler.enable_overlap else f"--lookahead {scheduler.lookahead}"
        raise ConfigError(
            f"{given} has no effect on a model of block diffusion ({architecture}): a pass over a block is planned when"
            " the pass before it is known"
        )
    if itl_micros(scheduler.itl_target):
        raise ConfigError(
            f"--itl-target {scheduler.itl_target} is not supported by a model of block diffusion ({architecture}),"
            " which streams by the block"
        )
    if scheduler.dynamic_chunking is not None:
        raise ConfigError(
            f"--dynamic-chunking {scheduler.dynamic_chunking} is not supported by a model of block diffusion"
            f" ({architecture})"
        )
    if config.diffusion.dllm_prefill == PREFILL_BY_BLOCK and not scheduler.chunked_prefill_size:
        raise ConfigError("--dllm-prefill block cuts prompts, but --chunked-prefill-size is off; leave one of them out")
    for item in fields(config.offload):
        if (value := getattr(config.offload, item.name)) is not None and item.name not in reasons:
            raise ConfigError(
                f"{flag(item.name)} {value} is not supported by a model of block diffusion ({architecture}): all of a"
                " context is on the device"
            )


def _with_room_for_blocks(resolved: Resolution, block_size: int) -> Resolution:
    """Return the options with sizes with which running requests never fill a step: each computes the block that is
    whole, and the open one."""
    config, reasons, page_size = resolved.config.scheduler, resolved.reasons, resolved.config.cache.page_size
    running, batch = config.max_running_requests, config.max_batch_tokens
    assert running is not None and batch is not None and page_size is not None, f"not resolved: {config}"
    each = 2 * block_size
    if "max_batch_tokens" in reasons:
        chunk = config.chunked_prefill_size or UNCHUNKED_BATCH_TOKENS
        scheduler = replace(config, max_batch_tokens=chunk + each * running)
        why = f"{chunk} of prompts + two blocks of each of --max-running-requests"
        return resolved.because(replace(resolved.config, scheduler=scheduler), max_batch_tokens=why)
    if batch > each * running:
        return resolved
    if "max_running_requests" not in reasons or batch <= each:
        raise ConfigError(
            f"--max-batch-tokens must be larger than {each} times --max-running-requests, two blocks of the model each,"
            f" or running requests alone could fill every step: got {batch} with {running} running"
        )
    running = max(1, (batch - page_size) // each)
    partial = config.max_partial_prefills or 1
    if partial > running and "max_partial_prefills" not in reasons:
        raise ConfigError(f"--max-partial-prefills must be at most --max-running-requests {running}, got {partial}")
    scheduler = replace(config, max_running_requests=running, max_partial_prefills=min(partial, running))
    why = f"two blocks of {block_size} each leave a page of --max-batch-tokens to prefill"
    return resolved.because(replace(resolved.config, scheduler=scheduler), max_running_requests=why)


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{OPTION} {path} cannot be read: {error}") from error


def _parsed(text: str) -> dict[str, Any]:
    """Return the fields of a JSON object, or of YAML that has one number a line."""
    if text.lstrip().startswith("{"):
        try:
            values: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{OPTION} is no valid JSON: {error}") from error
        return values
    values = {}
    for line in text.splitlines():
        content = line.partition("#")[0].strip()
        if not content or content == "---":
            continue
        name, colon, value = content.partition(":")
        if not colon:
            raise ConfigError(f"{OPTION} must hold lines such as `threshold: 0.95`, got {content!r}")
        values[name.strip()] = _number(value.strip())
    return values


def _number(text: str) -> Any:
    """Return a number; a text that is none, which is refused with its name."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
