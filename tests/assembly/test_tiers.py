"""Tiers as users set them up: what they find again, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from sluice import LLM, SamplingParams
from sluice.assembly import tiers
from sluice.assembly.load import load
from sluice.assembly.loaded import LoadedModel
from sluice.assembly.tiers import TierSetup
from sluice.config import ConfigError, EngineConfig
from sluice.engine.messages import Copied, Submit
from sluice.models.weights import fingerprint
from sluice.types import TierLimits
from tier_schedules import BlockingLink, greedy, run_out

GREEDY = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
PROMPTS = [tiny_models.prompt(40, seed) for seed in range(4)]
"""More than the pool holds."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("llama"))


def small(folder: Path, disk: Path | None, **options: Any) -> LLM:
    tier = {} if disk is None else {"kv_disk": disk, "kv_disk_bytes": 1_000_000}
    return LLM(folder, **({"max_total_tokens": 96, "page_size": 8} | tier | options))


def cached(llm: LLM, prompts: Sequence[tuple[int, ...]] = PROMPTS) -> list[int]:
    """Of each prompt, one after the other, the tokens that were found."""
    return [llm.generate([prompt], GREEDY)[0].num_cached_tokens for prompt in prompts]


def test_prefixes_outlive_the_pool_and_the_engine(folder: Path, tmp_path: Path) -> None:
    """A tier that is written and never read, or is empty after a restart; answers that differ from those without."""
    with small(folder, None) as llm:
        assert cached(llm) == cached(llm) == [0] * 4
        answers = [llm.generate([prompt], GREEDY)[0].token_ids for prompt in PROMPTS]
    with small(folder, tmp_path / "pages") as llm:
        assert cached(llm) == [0] * 4
        assert cached(llm) == [32] * 4
    with small(folder, tmp_path / "pages") as llm:
        results = [llm.generate([prompt], GREEDY)[0] for prompt in PROMPTS]
    assert [result.num_cached_tokens for result in results] == [32] * 4
    assert [result.token_ids for result in results] == answers


def test_a_tier_smaller_than_one_request_serves_all_the_same(folder: Path, tmp_path: Path) -> None:
    """A request that waits for room that there will never be."""
    with small(folder, tmp_path / "pages", kv_disk_bytes=40_000) as llm:
        cached(llm)
        assert max(cached(llm)) < 32


def test_the_file_of_another_model_begins_empty_and_says_so(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """KV of other weights in the same shape: plausible, fluent and wrong."""
    other = altered(folder, tmp_path / "other")
    with small(folder, tmp_path / "pages") as llm:
        cached(llm)
    with small(other, tmp_path / "pages") as llm:
        assert cached(llm) == [0] * 4
    assert f"--kv-disk {tmp_path / 'pages'} starts empty: it holds the KV of other weights" in caplog.text
    with small(other, tmp_path / "pages", page_size=4) as llm:
        assert cached(llm) == [0] * 4
    assert "it holds pages of 8, not 4" in caplog.text


def test_one_changed_byte_of_the_weights_is_another_model(folder: Path, tmp_path: Path) -> None:
    """A file that was trained on in place."""
    changed = altered(folder, tmp_path / "changed")
    assert fingerprint(changed) != fingerprint(folder)
    (weights,) = changed.glob("*.safetensors")
    weights.write_bytes((folder / weights.name).read_bytes())
    assert fingerprint(changed) == fingerprint(folder)


def altered(folder: Path, into: Path) -> Path:
    """A copy of a checkpoint in which one bit of one weight differs."""
    into.mkdir()
    for file in folder.iterdir():
        data = bytearray(file.read_bytes())
        if file.suffix == ".safetensors":
            data[-3] ^= 1
        (into / file.name).write_bytes(data)
    return into


def test_a_closed_llm_gives_its_file_free_and_an_open_one_does_not(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines in one file; a notebook that must be restarted to load its model again."""
    monkeypatch.setattr(tiers, "IN_USE_SECONDS", 0.1)
    with (
        small(folder, tmp_path / "pages"),
        pytest.raises(ConfigError, match="is in use by another engine"),
    ):
        small(folder, tmp_path / "pages")
    small(folder, tmp_path / "pages").close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"kv_disk": "missing/folder/pages"}, "missing/folder/pages cannot be opened: No such file"),
        ({"kv_disk": "."}, "Is a directory"),
        ({"kv_disk_bytes": 1_000_000}, "--kv-disk-bytes 1000000 needs a file"),
        ({"kv_disk": "pages", "kv_disk_bytes": 100}, "--kv-disk-bytes must be at least 16384"),
        ({"kv_disk": "pages", "kv_disk_bytes": 1 << 60}, "cannot be made"),
        ({"kv_disk": "pages", "enable_prefix_caching": False}, "--kv-disk needs the prefix cache"),
        ({"kv_write_policy": "selective"}, "--kv-write-policy selective needs a tier"),
        ({"kv_disk": "pages", "kv_write_policy": "never"}, "must be one of write-through, write-back, selective"),
        (
            {"kv_host_bytes": 1_000_000, "device": "cpu", "max_total_tokens": None},
            "--kv-host-bytes 1000000 needs a KV pool of a set size",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], problem: str
) -> None:
    """A tier that was asked for and is silently not there."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=problem):
        LLM(folder, **{"max_total_tokens": 96, "page_size": 8} | options)


def test_a_path_that_cannot_be_used_is_refused_before_the_model_loads(tmp_path: Path) -> None:
    """Minutes of loading before a typing mistake is found."""
    with pytest.raises(ConfigError, match="--kv-disk"):
        LLM(tmp_path / "no model here", kv_disk=tmp_path / "missing" / "pages")


def loaded(folder: Path, **options: Any) -> LoadedModel:
    options = {"model": str(folder), "page_size": 8, "max_total_tokens": 96} | options
    return load(EngineConfig.from_options(options), progress=False)


@pytest.mark.parametrize("policy", ["write-through", "write-back"])
def test_a_host_tier_serves_a_model(folder: Path, policy: str) -> None:
    """What a GPU does with the host's memory, here on a device that has no other: pages that come back from there, and
    from a disk behind it."""
    model = loaded(folder)
    model = replace(model, tiers=TierSetup(TierLimits(host_pages=64, write_policy=policy)))
    link, state = BlockingLink(), model.state()
    tiers = model.tiers.open(state, lambda done: link.post(Copied(done)))
    engine = model.engine(link, model.runner(state=state, tiers=tiers), tiers)
    for number, prompt in enumerate([*PROMPTS, *PROMPTS]):
        link.post(Submit(number, prompt, greedy(4)))
        run_out(engine, link, number + 1)
    ends = [link.end(number) for number in range(8)]
    assert [end.num_host_tokens for end in ends if end is not None] == [0] * 4 + [32] * 4
    assert [link.tokens(number) for number in range(4)] == [link.tokens(number) for number in range(4, 8)]
    engine.close()


def test_a_large_page_takes_a_step_of_its_own(folder: Path, tmp_path: Path) -> None:
    """Budgets of bytes that come to no page at all, and copies that never start."""
    model = loaded(folder, kv_disk=str(tmp_path / "pages"), kv_disk_bytes=1_000_000)
    assert 1 <= model.tiers.limits.copies_per_step <= model.tiers.limits.copies_in_flight
    assert model.tiers.limits.disk_pages > 50


def test_what_was_found_is_logged(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A restart without a log line that says whether it kept its cache."""
    with small(folder, tmp_path / "pages") as llm:
        cached(llm, PROMPTS[:1])
    with caplog.at_level(logging.INFO, "sluice.disk"):
        small(folder, tmp_path / "pages").close()
    assert "holds 5 pages of an earlier engine" in caplog.text
