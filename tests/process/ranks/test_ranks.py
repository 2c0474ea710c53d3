"""Several ranks, as processes over gloo: the answers of one process, and what happens if a rank dies or is refused."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import processes
from any_checkpoint import any_checkpoint
from serving import run
from slow import slow
from sluice import LLM, AsyncLLM, SamplingParams
from sluice.config import EngineConfig, flag
from sluice.parallel.group import GroupError
from sluice.process.launch import EngineProcess, EngineStartError
from sluice.process.ranks.frame_socket import WrongToken
from sluice.process.ranks.process import connect
from sluice.process.ranks.wire import Hello, RankFailed, RankFrame, decode_frame, encode_frame
from sluice.process.secret_file import TOKEN, read_or_make_secret
from sluice.process.wire import Start
from sluice.version import VERSION

PROMPTS = [
    "The key of the blue box is 4711.",
    "Once upon a time",
    "A sluice is a gate that",
    "In the attic of the house",
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, top_p=0.9, repetition_penalty=1.1, seed=7, max_tokens=24, ignore_eos=True)
ASKED = [GREEDY, SEEDED, GREEDY, SEEDED]
EXACT = {"dtype": "float64", "max_total_tokens": 2048, "chunked_prefill_size": 32, "page_size": 8, "threads": 1}
"""Sums of parts differ in rounding, which in float64 changes no token."""


SLICED = {"pp_size": 2, "itl_target": "1ms", "sliced_chunk_size": 64}
LONG = " ".join(PROMPTS * 20)


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """What one process answers."""
    with LLM(any_checkpoint(), **EXACT) as llm:
        return [result.text for result in llm.generate(PROMPTS, ASKED)]


async def answers(llm: AsyncLLM, prompts: Sequence[str] = PROMPTS) -> list[str]:
    """Return the answers to all prompts, asked at once."""

    async def answer(prompt: str, params: SamplingParams) -> str:
        return "".join([piece.text async for piece in llm.generate(prompt, params)])

    return list(await asyncio.gather(*map(answer, prompts, ASKED)))


@pytest.mark.parametrize(
    "sizes",
    [{"tp_size": 2}, slow({"pp_size": 2, "enable_overlap": True}), slow({"tp_size": 2, "pp_size": 2}), slow(SLICED)],
    ids=str,
)
async def test_ranks_answer_as_one_process(sizes: dict[str, int], expected: list[str]) -> None:
    async with AsyncLLM(any_checkpoint(), **EXACT, **sizes) as llm:
        assert llm.pid is not None
        ranks = processes.children(llm.pid)
        assert len(ranks) == sizes.get("tp_size", 1) * sizes.get("pp_size", 1) - 1
        assert await answers(llm) == expected
    assert all(processes.ends(rank, 10) for rank in ranks), "ranks end with their engine"


async def test_streams_go_on_when_a_later_stage_hangs(expected: list[str]) -> None:
    """The leader waits for its answer. None of the ranks computes, which the heartbeat shows."""
    async with AsyncLLM(any_checkpoint(), **EXACT, pp_size=2) as llm:
        assert llm.pid is not None
        (rank,) = processes.children(llm.pid)
        stream = llm.generate(PROMPTS[0], GREEDY)
        pieces = [await anext(stream)]
        os.kill(rank, signal.SIGSTOP)
        pieces += [piece async for piece in stream]
        assert "".join(piece.text for piece in pieces) == expected[0]
        assert llm.num_restarts == 1
        assert processes.ends(rank, 10)


def test_streams_go_on_when_a_stage_is_killed_between_two_layers_of_a_chunk(expected: list[str]) -> None:
    """Half of the layers of the open chunk are computed, and what the dead stage had of them is lost."""
    with LLM(any_checkpoint(), **EXACT) as llm:
        (whole,) = llm.generate([LONG], GREEDY)

    async def test() -> None:
        async with AsyncLLM(any_checkpoint(), **EXACT, **SLICED) as llm:
            assert llm.pid is not None
            (rank,) = processes.children(llm.pid)
            stream = llm.generate(PROMPTS[0], GREEDY)
            pieces = [await anext(stream)]
            asked = asyncio.create_task(anext(llm.generate(LONG, replace(GREEDY, max_tokens=1))))
            pieces += [await anext(stream) for _ in range(4)]
            assert not asked.done()
            os.kill(rank, signal.SIGKILL)
            pieces += [piece async for piece in stream]
            assert "".join(piece.text for piece in pieces) == expected[0]
            assert whole.text.startswith((await asked).text)
            assert llm.num_restarts == 1

    run(test)


@pytest.mark.slow
def test_layers_of_two_stages_store_the_same_keys_in_int8() -> None:
    """Of a chunk of several parts, and of its prefix in the cache."""
    options = EXACT | {"kv_cache_dtype": "int8"}
    long = {"pp_size": 2, "itl_target": "60ms", "sliced_chunk_size": 1024}
    with LLM(any_checkpoint(), **options) as llm:
        expected = [result.text for result in llm.generate([*PROMPTS[:3], LONG], ASKED)]

    async def test() -> None:
        async with AsyncLLM(any_checkpoint(), **options, **long) as llm:
            assert await answers(llm, [*PROMPTS[:3], LONG]) == expected
            assert await answers(llm, [*PROMPTS[:3], LONG]) == expected

    run(test)


@pytest.mark.slow
def test_streams_go_on_when_a_rank_of_another_machine_is_killed(tmp_path: Path, expected: list[str]) -> None:
    """Both machines are this one. Its engine ends with the rank, and the next one finds the rank that follows."""
    options = {**EXACT, "tp_size": 2, "nnodes": 2, "dist_init_addr": f"127.0.0.1:{processes.free_port()}"}
    options |= {"dist_token_file": str(tmp_path / "token")}
    flags = [word for name, value in options.items() for word in (flag(name), str(value))]

    async def test(node: int) -> None:
        async with AsyncLLM(any_checkpoint(), **options) as llm:
            assert llm.pid is not None
            assert processes.children(llm.pid) == [], "the other rank runs on the other machine"
            first, (rank,) = llm.pid, processes.children(node)
            asked = asyncio.create_task(answers(llm))
            stream = llm.generate(PROMPTS[0], GREEDY)
            pieces = [await anext(stream)]
            os.kill(rank, signal.SIGKILL)
            pieces += [piece async for piece in stream]
            assert "".join(piece.text for piece in pieces) == expected[0]
            assert await asked == expected
            assert llm.num_restarts == 1
            assert llm.pid != first

    read_or_make_secret(tmp_path / "token", TOKEN)
    with machine("--node-rank", "1", *flags) as other:
        run(lambda: test(other.pid))
        other.terminate()
        assert other.wait(10) == 0


@contextmanager
def machine(*flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the ranks of another machine, with the same model."""
    with subprocess.Popen([sys.executable, "-m", "sluice", "serve", str(any_checkpoint()), *flags]) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_leader_that_ends_just_then_is_no_reason_to_give_up() -> None:
    """Nor is it one to look for another token: the next engine may take the rank."""

    def end(listener: socket.socket) -> None:
        listener.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as thread:
        thread.submit(end, listener)
        with pytest.raises(GroupError) as ended:
            connect(f"127.0.0.1:{listener.getsockname()[1]}", b"token", 60)
    assert not isinstance(ended.value, WrongToken)
    assert "--dist-token-file" not in str(ended.value)


async def test_ranks_that_are_missing_or_others_are_refused(tmp_path: Path) -> None:
    """The test is the other machine: with another token, then with another version."""
    token = read_or_make_secret(tmp_path / "token", TOKEN)
    ports = [processes.free_port(), processes.free_port()]

    def start(port: int, seconds: float) -> Start:
        options = {"tp_size": 2, "nnodes": 2, "dist_init_addr": f"127.0.0.1:{port}", "device": "cpu"}
        files = {"model": str(any_checkpoint()), "dist_token_file": str(tmp_path / "token")}
        config = EngineConfig.from_options(options | files)
        return Start(config, start_seconds=seconds)

    def meet(address: str) -> RankFrame:
        with pytest.raises(WrongToken, match="--dist-token-file must be the same on every machine"):
            connect(address, b"a guess", 60)
        with closing(connect(address, token, 60)) as connection:
            connection.send(encode_frame(Hello(1, {"sluice": "0.0.1"})))
            return decode_frame(connection.receive())

    async def refusal(port: int, seconds: float) -> str:
        engine = await EngineProcess.spawn(start(port, seconds))
        try:
            with pytest.raises(EngineStartError) as refused:
                await engine.ready()
        finally:
            await engine.close()
        return str(refused.value)

    missing, other, answer = await asyncio.gather(
        refusal(ports[0], 0.1), refusal(ports[1], 60.0), asyncio.to_thread(meet, f"127.0.0.1:{ports[1]}")
    )
    assert f"ranks 1 have not connected to 127.0.0.1:{ports[0]} within 0.1 s: start their machines" in missing
    assert other.startswith(f"rank 1 has sluice 0.0.1, and rank 0 has {VERSION}: start every machine")
    assert answer == RankFailed(other)
