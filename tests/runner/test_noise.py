"""The counter-based generator: a function of its key, uniform, and without visible structure."""

import math

import pytest
import torch

from sluice.runner.noise import gumbel, noise_key, random_bits

EXTREME_SEEDS = [0, 1, -1, (1 << 64) - 1, -(1 << 63), 1 << 63, (1 << 63) - 1]


def keys(*seeds: int, sample_index: int = 0) -> torch.Tensor:
    return torch.tensor([noise_key(seed, sample_index) for seed in seeds])


def uniforms(noise_keys: torch.Tensor, positions: torch.Tensor, width: int) -> torch.Tensor:
    """The generator's bits as numbers in [0, 1)."""
    return ((random_bits(noise_keys, positions, width) >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def python_bits(seed: int, sample_index: int, position: int, token: int) -> int:
    """The definition again, in Python's unbounded integers."""
    mask = (1 << 64) - 1
    weyl, first, second = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * first) & mask
        z = ((z ^ (z >> 27)) * second) & mask
        return z ^ (z >> 31)

    key = mix((seed + weyl) & mask)
    key = mix((key + (seed >> 64) * first + weyl) & mask)
    key = mix((key + (sample_index + 1) * weyl) & mask)
    key = mix((key + mix(((position + 1) * weyl) & mask)) & mask)
    return mix((key + (token + 1) * weyl) & mask)


@pytest.mark.parametrize("seed", EXTREME_SEEDS)
def test_bits_are_those_of_the_definition(seed: int) -> None:
    """Keeps out an arithmetic shift or a product that does not wrap: cpu and cuda would then disagree."""
    positions = [0, 1, 77, 1 << 20]
    bits = random_bits(keys(*[seed] * 4, sample_index=3), torch.tensor(positions), 5)
    for row, position in enumerate(positions):
        expected = [python_bits(seed, 3, position, token) for token in range(5)]
        assert [value % (1 << 64) for value in bits[row].tolist()] == expected


def test_first_values_never_change() -> None:
    """Seeded results are a promise to users across versions: a change of the generator must be seen."""
    assert noise_key(0, 0) == 2558736989570252433
    assert random_bits(keys(42), torch.tensor([7]), 2).tolist() == [[2236628871825533394, -7016812701224263903]]


def test_seeds_and_samples_have_noise_of_their_own() -> None:
    """-1 and 2**64 - 1 are the same 64 bits, and still two seeds."""
    seeds = [*EXTREME_SEEDS, *range(2, 500), *range(-500, -1)]
    found = {noise_key(seed, index) for seed in seeds for index in range(4)}
    assert len(found) == 4 * len(seeds)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_has_the_gumbel_distribution(dtype: torch.dtype) -> None:
    noise = gumbel(keys(5), torch.tensor([9]), 400_000, dtype).double()
    assert noise.isfinite().all()
    assert float(noise.mean()) == pytest.approx(0.57722, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.03)
    for quantile in (0.001, 0.1, 0.5, 0.9, 0.999):
        value = -math.log(-math.log(quantile))
        share = float((noise <= value).double().mean())
        assert share == pytest.approx(quantile, abs=5 * math.sqrt(quantile * (1 - quantile) / 400_000))


def test_float32_noise_keeps_its_upper_tail() -> None:
    """-log(-log(u)) of a 24-bit uniform ends at 17 and comes in coarse steps there: rare tokens lose their share."""
    noise = torch.cat([gumbel(keys(seed), torch.tensor([0]), 1 << 20, torch.float32) for seed in range(3)], dim=1)
    top = noise.flatten().topk(64).values
    assert len(top.unique()) == 64
    exact = torch.cat([gumbel(keys(seed), torch.tensor([0]), 1 << 20, torch.float64) for seed in range(3)], dim=1)
    torch.testing.assert_close(top.double(), exact.flatten().topk(64).values, rtol=1e-6, atol=1e-6)


def test_noise_is_finite_where_the_uniform_rounds_to_one() -> None:
    """This draw is 1 - 1.5e-10, which is 1 in float32: infinite noise would be worse than any logit."""
    noise = gumbel(keys(3875), torch.tensor([0]), 6000, torch.float32)[0]
    assert noise.isfinite().all()
    assert int(noise.argmin()) == 5945


def chi_square(counts: torch.Tensor) -> float:
    expected = counts.sum() / counts.numel()
    return float(((counts - expected) ** 2 / expected).sum())


NEIGHBOURS = {
    "seeds": (uniforms(keys(*range(2000)), torch.zeros(2000, dtype=torch.int64), 100), 0),
    "positions": (uniforms(keys(3).expand(2000), torch.arange(2000), 100), 0),
    "vocabulary": (uniforms(keys(3).expand(200), torch.arange(200), 1000), 1),
    "samples": (
        uniforms(torch.tensor([noise_key(3, i) for i in range(2000)]), torch.zeros(2000, dtype=torch.int64), 100),
        0,
    ),
}


@pytest.mark.parametrize("direction", NEIGHBOURS)
def test_neighbours_are_independent(direction: str) -> None:
    """Keeps out a weak hash of the counter: neighbouring draws fill the unit square evenly, and do not correlate."""
    values, dim = NEIGHBOURS[direction]
    for lag in (1, 2, 8):
        size = values.shape[dim]
        a, b = values.narrow(dim, 0, size - lag).flatten(), values.narrow(dim, lag, size - lag).flatten()
        correlation = float(torch.corrcoef(torch.stack([a, b]))[0, 1])
        assert abs(correlation) < 4.5 / math.sqrt(a.numel())
        cells = (a * 16).long() * 16 + (b * 16).long()
        statistic = chi_square(torch.bincount(cells, minlength=256).double())
        assert statistic < 255 + 4.5 * math.sqrt(2 * 255)


def test_every_bit_is_fair() -> None:
    bits = random_bits(keys(11).expand(64), torch.arange(64), 4096)
    for place in range(64):
        ones = int(((bits >> place) & 1).sum())
        assert abs(ones - bits.numel() / 2) < 4.5 * math.sqrt(bits.numel()) / 2
