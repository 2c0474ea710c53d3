"""Rotary position embedding: reads it from a config and computes its frequencies.

Each kind of scaling computes inverse frequencies from a head size. Sources: RoFormer (Su et al., 2021); linear:
position interpolation (Chen et al., 2023); llama3: Llama 3.1 (Dubey et al., 2024); yarn: YaRN (Peng et al., 2023).
Dynamic NTK, whose frequencies depend on the length of the text, is refused, since cached keys would have to be rotated
again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from sluice.models.checkpoint import FULL, SLIDING, CheckpointError, Fields

LOGGER = logging.getLogger("sluice.models")
DEFAULT_THETA = 10_000.0
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("factor", "attention_factor", "alpha"), (1,)),
    **dict.fromkeys(("factors", "short_factor", "long_factor", "short_mscale", "long_mscale"), ()),
    "apply_yarn_scaling": (True,),
    "llama_4_scaling_beta": (0,),
}
"""Parameters that would change the numbers -> the values with which a kind that does not read them is right without."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Frequencies `theta ** (-2i / head_dim)`, which subclasses scale."""

    PARAMETERS: ClassVar[tuple[str, ...]] = ()
    """Fields of the RoPE section that this kind reads beside `_COMMON`."""
    theta: float

    @classmethod
    def read(cls, given: Fields, theta: float, config: Fields) -> Rope:
        """Read the parameters of this kind from the RoPE section `given` of a config."""
        return cls(theta)

    @property
    def attention_factor(self) -> float:
        """Factor of cos and sin."""
        return 1.0

    def context(self, max_positions: int) -> int:
        """Return the tokens of a model's context.

        Args:
            max_positions: `max_position_embeddings` of its config.
        """
        return max_positions

    def inverse_frequencies(self, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the radians per position of each rotated pair, [head_dim / 2], computed in `dtype` on the CPU."""
        return 1.0 / _periods(self.theta, head_dim, dtype)


@dataclass(frozen=True, slots=True)
class LinearRope(Rope):
    """Divides all frequencies by `factor`."""

    PARAMETERS = ("factor",)
    factor: float

    @classmethod
    def read(cls, given: Fields, theta: float, config: Fields) -> Rope:
        return cls(theta, given.number("factor"))

    def inverse_frequencies(self, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
        return 1.0 / _periods(self.theta, head_dim, dtype) / self.factor


@dataclass(frozen=True, slots=True)
class Llama3Rope(Rope):
    """Divides low frequencies by `factor`, keeps high ones and interpolates between."""

    PARAMETERS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int

    @classmethod
    def read(cls, given: Fields, theta: float, config: Fields) -> Rope:
        low, high = given.number("low_freq_factor"), given.number("high_freq_factor")
        if high <= low:
            raise given.error("high_freq_factor", f"above low_freq_factor = {low}")
        return cls(theta, given.number("factor"), low, high, _original_max_positions(given, config))

    def inverse_frequencies(self, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
        plain = 1.0 / _periods(self.theta, head_dim, dtype)
        turns = self.original_max_positions / (2 * math.pi / plain)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0.0, 1.0)
        return (1 - kept) * plain / self.factor + kept * plain


@dataclass(frozen=True, slots=True)
class YarnRope(Rope):
    """Divides the frequencies of pairs that turn less than `beta_slow` times in the original context by `factor`.

    Frequencies of pairs that turn more than `beta_fast` times are kept; between, they are interpolated.
    """

    PARAMETERS = (
        "factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "attention_factor",
        "attn_factor",
        "truncate",
        "original_max_position_embeddings",
    )
    factor: float
    beta_fast: float
    beta_slow: float
    original_max_positions: int
    truncate: bool
    magnitude: float

    @classmethod
    def read(cls, given: Fields, theta: float, config: Fields) -> Rope:
        original = _original_max_positions(given, config)
        factor = given.number("factor", config.integer("max_position_embeddings") / original)
        fast, slow = given.number("beta_fast", 32.0), given.number("beta_slow", 1.0)
        if fast < slow:
            raise given.error("beta_fast", f"at least beta_slow = {slow}")
        return cls(
            theta,
            factor,
            beta_fast=fast,
            beta_slow=slow,
            original_max_positions=original,
            truncate=given.flag("truncate", True),
            magnitude=given.number("attention_factor", _yarn_magnitude(given, factor) * _own_factor(given)),
        )

    @property
    def attention_factor(self) -> float:
        return self.magnitude

    def context(self, max_positions: int) -> int:
        # Configs often give the original context there.
        return max(max_positions, int(self.original_max_positions * self.factor))

    def inverse_frequencies(self, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
        periods = _periods(self.theta, head_dim, dtype)
        low, high = self._pair_with_turns(self.beta_fast, head_dim), self._pair_with_turns(self.beta_slow, head_dim)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        if low == high:
            high += 0.001
        pairs = torch.arange(head_dim // 2, dtype=dtype, device="cpu")
        kept = 1 - ((pairs - low) / (high - low)).clamp(0.0, 1.0)
        return 1.0 / (self.factor * periods) * (1 - kept) + 1.0 / periods * kept

    def _pair_with_turns(self, turns: float, head_dim: int) -> float:
        """Return the index (not an integer) of the pair that turns so many times within the original context."""
        return head_dim * math.log(self.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(self.theta))


@dataclass(frozen=True, slots=True)
class FactorRope(Rope):
    """Divides each frequency by a factor of its own, as GGUF files give them."""

    PARAMETERS = ("factors",)
    factors: tuple[float, ...]

    @classmethod
    def read(cls, given: Fields, theta: float, config: Fields) -> Rope:
        return cls(theta, _factors(given, "factors"))

    def inverse_frequencies(self, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
        return _divided(_periods(self.theta, head_dim, dtype), self.factors)


@dataclass(frozen=True, slots=True)
class LongRope(Rope):
    """Divides each frequency by a factor of its own (LongRoPE: Ding et al., 2024).

    There are two sets of factors: for texts up to the original context, and for longer ones. A text that grows beyond
    it would have to be computed again, so a model with a longer context always has the second set.
    """

    PARAMETERS = ("factor", "short_factor", "long_factor", "attention_factor", "original_max_position_embeddings")
    factors: tuple[float, ...]
    magnitude: float

    @classmethod
    def read(cls, given: Fields, theta: float, config: Fields) -> Rope:
        original, longest = _original_max_positions(given, config), config.integer("max_position_embeddings")
        name = "long_factor" if longest > original else "short_factor"
        factor = given.number("factor", longest / original)
        magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        return cls(theta, _factors(given, name), given.number("attention_factor", magnitude))

    @property
    def attention_factor(self) -> float:
        return self.magnitude

    def inverse_frequencies(self, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
        return _divided(_periods(self.theta, head_dim, dtype), self.factors)


@dataclass(frozen=True, slots=True)
class ProportionalRope(Rope):
    """Rotates a part of the pairs, with the frequencies that they have among all, and divides these by `factor`."""

    PARAMETERS = ("factor", "partial_rotary_factor")
    factor: float
    share: float
    """Of the pairs."""

    @classmethod
    def read(cls, given: Fields, theta: float, config: Fields) -> Rope:
        share = given.number("partial_rotary_factor", 1.0)
        if share > 1:
            raise given.error("partial_rotary_factor", "a number above 0 and at most 1")
        return cls(theta, given.number("factor", 1.0), share)

    def inverse_frequencies(self, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
        frequencies = 1.0 / _periods(self.theta, head_dim, dtype) / self.factor
        frequencies[int(self.share * head_dim // 2) :] = 0
        return frequencies


def _factors(given: Fields, name: str) -> tuple[float, ...]:
    factors = given.get(name)
    if not isinstance(factors, list) or not all(isinstance(each, int | float) and each > 0 for each in factors):
        raise given.error(name, "a list of numbers above 0")
    return tuple(map(float, factors))


def _divided(periods: torch.Tensor, factors: tuple[float, ...]) -> torch.Tensor:
    """Return frequencies of which each is divided by a factor of its own."""
    if len(factors) != len(periods):
        raise CheckpointError(f"rope factors must be {len(periods)}, one for each pair, got {len(factors)}")
    return 1.0 / periods / torch.tensor(factors, dtype=periods.dtype, device="cpu")


_COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_SPELLINGS = {"type": "rope_type"}
KINDS: Mapping[str, type[Rope]] = {
    "default": Rope,
    "linear": LinearRope,
    "llama3": Llama3Rope,
    "yarn": YarnRope,
    "factors": FactorRope,
    "longrope": LongRope,
    "proportional": ProportionalRope,
}

_MATTERS = frozenset((*_COMMON, *NEUTRAL, *(name for kind in KINDS.values() for name in kind.PARAMETERS)))
"""Parameters that some kind reads."""


def read_rope(config: Fields, theta: float = DEFAULT_THETA, also: Sequence[str] = ()) -> Rope:
    """Read the RoPE of a `config.json`: `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (4).

    Args:
        theta: of a config that names none.
        also: parameters that the family reads itself.

    Raises:
        CheckpointError: an unsupported type, a missing parameter, one that matters and that the type does not have, or
            a value out of range.
    """
    given = rope_section(config)
    for name in given:
        if isinstance(given.get(name), dict):
            raise CheckpointError(f"{given.source}: {name}: rotary embeddings per kind of layer are not supported")
    return _read(given, config, theta, also)


def read_ropes(config: Fields, thetas: tuple[float, float], local: str) -> dict[str, Rope]:
    """Read the RoPE of each of two kinds of layers.

    `rope_parameters` may have a section for each. Otherwise the fields are that of full attention, beside the theta of
    sliding attention, which is never scaled.

    Args:
        thetas: of full and of sliding attention, where a config names none.
        local: field of the theta of sliding attention in a config without sections.

    Raises:
        CheckpointError: as `read_rope`.
    """
    sections = config.section("rope_parameters")
    if sections is None or not all(isinstance(sections.get(name), dict) for name in sections):
        theta = config.number(local, thetas[1])
        return {FULL: read_rope(config, thetas[0]), SLIDING: Rope(theta)}
    if unknown := [name for name in sections if name not in (FULL, SLIDING)]:
        raise CheckpointError(f"{sections.source}: {unknown[0]} is no kind of layer; known: {FULL}, {SLIDING}")
    ropes = {}
    for kind, theta in zip((FULL, SLIDING), thetas, strict=True):
        section = sections.section(kind) or Fields({}, f"{sections.source}: {kind}")
        ropes[kind] = _read(section, Fields({**config.values, "rope_theta": None}, config.source), theta, ())
    return ropes


def _read(given: Fields, config: Fields, theta: float, also: Sequence[str]) -> Rope:
    """Read the RoPE in a section of a config."""
    kind = given.text("rope_type", given.text("type", "default"))
    if kind not in KINDS:
        raise CheckpointError(f"{given.source}: rope type {kind!r} is not supported; known: {', '.join(KINDS)}")
    _check_unread(given, kind, also)
    if (
        "partial_rotary_factor" not in (*also, *KINDS[kind].PARAMETERS)
        and given.number("partial_rotary_factor", 1.0) != 1.0
    ):
        raise given.error("partial_rotary_factor", "1")
    theta = given.number("rope_theta", config.number("rope_theta", theta))
    if theta <= 1.0:
        raise CheckpointError(f"{config.source}: rope_theta must be above 1, got {theta}")
    return KINDS[kind].read(given, theta, config)


def rope_section(config: Fields) -> Fields:
    """Return the parameters. Both spellings may be there if they say the same; one of them may leave out the theta."""
    sections = [config.section(name) for name in ("rope_parameters", "rope_scaling")]
    new, old = ({} if each is None else {name: each.get(name) for name in each} for each in sections)
    if new and old:
        plain, other = ({_SPELLINGS.get(name, name): value for name, value in each.items()} for each in (new, old))
        thetas = {each.pop("rope_theta") for each in (plain, other) if "rope_theta" in each}
        known, others = ({name: each[name] for name in each if name in _MATTERS} for each in (plain, other))
        if known != others or len(thetas) > 1:
            raise CheckpointError(f"{config.source}: rope_parameters and rope_scaling contradict each other")
    return Fields({**old, **new}, f"{config.source}: {'rope_scaling' if old and not new else 'rope_parameters'}")


def _check_unread(given: Fields, kind: str, also: Sequence[str]) -> None:
    """Name the parameters that this kind does not read, as transformers does not, and refuse those that matter."""
    unread = [name for name in given if name not in (*KINDS[kind].PARAMETERS, *_COMMON, *also)]
    for name in unread:
        if name in NEUTRAL and given.get(name) not in NEUTRAL[name]:
            accepted = " or ".join(str(value) for value in NEUTRAL[name]) or "absent"
            raise given.error(name, f"{accepted} for rope type {kind!r}")
    named = [name for name in unread if name not in NEUTRAL]
    if named:
        LOGGER.warning("%s: rope type %r does not use %s", given.source, kind, ", ".join(named))


def _yarn_magnitude(given: Fields, factor: float) -> float:
    """Return the factor of cos and sin by YaRN's section 3.4, which grows with the scaling."""

    def stretch(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if given.get("mscale") and given.get("mscale_all_dim"):
        return stretch(given.number("mscale")) / stretch(given.number("mscale_all_dim"))
    return stretch(1.0)


def _own_factor(given: Fields) -> float:
    """Return the factor by which a model changes YaRN's own. transformers ignores it.

    Models that give it undo YaRN's factor (0.878 is 1 / (0.1 ln 4 + 1)): so vLLM, SGLang and llama.cpp read it.
    """
    factor = given.number("attn_factor", 1.0)
    if factor != 1.0:
        LOGGER.warning("%s: attn_factor = %g is used, as in vLLM; transformers ignores it", given.source, factor)
    return factor


def _original_max_positions(given: Fields, config: Fields) -> int:
    """Return the context of the original training. A value outside the RoPE section precedes, as in transformers."""
    name = "original_max_position_embeddings"
    return config.integer(name, given.integer(name, config.integer("max_position_embeddings")))


def _periods(theta: float, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    return theta ** (torch.arange(0, head_dim, 2, dtype=dtype, device="cpu") / head_dim)
