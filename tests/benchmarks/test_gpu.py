"""The script for GPUs, tried on a CPU: nothing may be left to fail on the day when there is a GPU for ten minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu import ALL_SECONDS, PARTS, ROOT, Part, _in_child, main, run_parts
from benchmarks.on_gpu.clocks import HostMark, MarkedQueue, idle_share
from benchmarks.on_gpu.models import LARGE, SMALL, config_of, num_parameters, random_model
from benchmarks.on_gpu.prefill_chunk import flops
from benchmarks.on_gpu.setting import Setting
from sluice.device.queues import InlineQueue

TRIAL = Setting(torch.device("cpu"), tiny=True)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("gpu") / "trial.json"
    names = [name for name in PARTS if "flashinfer" not in name and name != "transformers_peer"]
    with warnings.catch_warnings():  # numpy's, of infinities, in Triton's interpreter
        warnings.simplefilter("ignore", RuntimeWarning)
        assert main(["--json", str(path), "--trial", "--parts", ",".join(names)]) == 0
    content = json.loads(path.read_text())
    assert list(content["parts"]) == names
    return content["parts"]


@pytest.mark.slow
def test_every_part_runs(parts: dict[str, Any]) -> None:
    """The same code as on a device, over small models: it must come to its end and say what it found."""
    for part in parts.values():
        assert "error" not in part
    batches = parts["decode_step"]["batches"]
    assert [row["batch"] for row in batches] == [1, 3]
    assert [row["graphs"] for row in batches] == [[1], [1, 2, 3]], "decodes are replayed"
    assert [row["start"] for row in parts["prefill_chunk"]["rows"]] == list(range(0, 256, 32))
    assert [row["chunk"] for row in parts["interference"]["rows"]] == [16, 32, -1]
    assert all(row["disturbed"]["gaps"] > 3 for row in parts["interference"]["rows"])


@pytest.mark.slow
def test_small_kernels_are_compared(parts: dict[str, Any]) -> None:
    """All of them run in Triton's interpreter here, and give what torch gives."""
    pointwise = parts["pointwise"]
    if find_spec("triton") and os.environ.get("TRITON_INTERPRET") == "1":
        assert pointwise["kernels"] == "TritonOps"
    assert [row["case"] for row in pointwise["rows"] if not row["passes"]] == []
    assert len(pointwise["rows"]) == 12
    assert [row for row in parts["quantized_linear"]["rows"] if not row["passes"]] == []


@pytest.mark.slow
def test_parity_would_notice(parts: dict[str, Any]) -> None:
    """All variants pass, and of tokens that depend on what came before: a model that repeats itself proves nothing."""
    parity = parts["parity"]
    assert parity["reached"]
    assert len(parity["rows"]) == 4
    assert parity["different_tokens"] > 20


def test_what_fails_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    """The day's only run must not end with its first part."""

    def run(part: Part, left: float) -> dict[str, Any]:
        return {"error": "broken"} if part.module == "rates" else {"left": left}

    path = tmp_path / "out.json"
    found = run_parts(["rates", "parity"], run, path, limit=60)
    assert found["rates"] == {"error": "broken"}
    assert 0 < found["parity"]["left"] <= 60
    assert json.loads(path.read_text())["parts"] == found
    late = run_parts(["rates", "parity"], run, path, limit=0)
    assert all("not begun" in part["error"] for part in late.values())


@pytest.mark.slow
def test_a_part_in_a_process_of_its_own() -> None:
    """One that hangs is ended, one that is done hands its result over."""
    assert "took longer than" in _in_child(Part("rates", 0.01), TRIAL, 60)["error"]
    assert _in_child(Part("rates", 500), TRIAL, 500)["copy_bytes_per_second"] > 0


def test_a_part_that_lacks_a_package_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a bare machine the script ended with the first import that failed."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert Part("transformers_peer", 60).run(TRIAL)["error"] == (
        "needs the package transformers, which is not installed (pip install transformers)"
    )


@pytest.mark.slow
def test_parts_need_no_more_than_torch_and_transformers_bring() -> None:
    """A machine is rented for minutes: packages of the server are not worth installing there."""
    imports = ", ".join(f"benchmarks.on_gpu.{name}" for name in PARTS)
    program = f"import sys, {imports}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert {"msgspec", "zmq", "starlette", "uvicorn", "prometheus_client"}.isdisjoint(shown.stdout.split())


def test_more_time_can_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashInfer's compilation outlasted its part, and nothing could be done about it."""
    given: list[tuple[float, float]] = []

    def run(part: Part, setting: Setting, left: float) -> dict[str, Any]:
        given.append((part.seconds, left))
        return {}

    monkeypatch.setattr(gpu, "_in_process", run)
    arguments = ["--trial", "--json", str(tmp_path / "x.json"), "--parts", "rates"]
    assert main([*arguments, "--time-factor", "2.5"]) == 0
    ((seconds, left),) = given
    assert seconds == 2.5 * PARTS["rates"].seconds
    assert 2 * ALL_SECONDS < left <= 2.5 * ALL_SECONDS
    with pytest.raises(SystemExit):
        main([*arguments, "--time-factor", "0"])


def test_flashinfer_that_is_not_there_is_not_waited_for() -> None:
    for name in ("attention_flashinfer", "parity_flashinfer"):
        assert "FlashInfer" in Part(name, 60).run(TRIAL)["error"]


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        main(["--json", "x.json"])
    assert "no CUDA device; --trial runs the same code on a CPU" in capsys.readouterr().err


def test_shapes_are_the_published_ones() -> None:
    """Figures for "8B" over a model of another size."""
    with torch.device("meta"):
        small, large = (count_of(config_of(name)) for name in (SMALL, LARGE))
    assert (small, large) == (596_049_920, 8_030_261_248)


def count_of(config: dict[str, Any]) -> int:
    hidden, head, layers = config["hidden_size"], config["head_dim"], config["num_hidden_layers"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    block = hidden * head * (2 * heads + 2 * kv_heads) + 3 * hidden * config["intermediate_size"] + 2 * hidden
    norms = 2 * head if config["model_type"] == "qwen3" else 0
    tables = config["vocab_size"] * hidden * (1 if config["tie_word_embeddings"] else 2)
    return tables + layers * (block + norms) + hidden


def test_operations_of_a_chunk() -> None:
    """Two for each weight and token, four for each element of a head and pair of tokens."""
    config = config_of(SMALL, tiny=True)
    model = random_model(config, torch.float32, torch.device("cpu"))
    assert num_parameters(model) == count_of(config)
    weights = num_parameters(model) - config["vocab_size"] * config["hidden_size"]
    pairs = 5 + 6 + 7
    assert flops(model, 4, 3) == 2 * weights * 3 + 4 * 2 * 4 * 32 * pairs


def test_idle_time_is_what_lies_between() -> None:
    """Work that is marked where it is queued, and not where it runs, would show no gaps."""
    times = iter([0.0, 2.0, 3.0, 5.0])

    def mark() -> HostMark:
        made = HostMark()
        made.at = next(times)
        return made

    stream = MarkedQueue(InlineQueue(), mark)
    for _ in range(2):
        stream.run(lambda: None)
    assert [span.seconds for span in stream.spans] == [2.0, 2.0]
    assert idle_share(stream.spans) == pytest.approx(0.2)
