"""Clients that evaluate a model or measure a server. They install much, so they run only when they are named."""

from __future__ import annotations

import json
import sys
import tempfile
from functools import cache
from pathlib import Path

from client_programs.target import ENVIRONMENTS, PROGRAMS, ROOT, Target, output_of


@cache
def tokenizer() -> Path:
    """Return a folder with a tokenizer in transformers' form, by which clients count their prompts."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.checkpoint.shapes import QWEN3
    from benchmarks.make_checkpoint import write_checkpoint

    folder = ENVIRONMENTS / "tokenizer"
    if not folder.exists():
        write_checkpoint(folder, QWEN3.tiny())
    return folder


def lm_eval(target: Target) -> None:
    """Run lm-eval: log-probabilities of choices over completions, and generated answers over chats."""
    settings = f"model=sluice,num_concurrent=2,max_retries=1,tokenizer={tokenizer()}"
    for kind, path, task, more in (
        ("local-completions", "/v1/completions", "places", ()),
        ("local-chat-completions", "/v1/chat/completions", "answers", ("--apply_chat_template",)),
    ):
        with tempfile.TemporaryDirectory() as results:
            output_of(
                *(str(ENVIRONMENTS / "lm-eval" / "bin" / "lm_eval"), "--model", kind, "--tasks", task, *more),
                *("--model_args", f"{settings},base_url={target.url}{path}"),
                *("--include_path", ".", "--output_path", results),
                cwd=PROGRAMS / "lm_eval",
                OPENAI_API_KEY=target.key,
            )
            (report,) = Path(results).rglob("results_*.json")
            assert json.loads(report.read_text())["n-samples"][task]["effective"] == 4


def guidellm(target: Target) -> None:
    """Run guidellm for a short time: chats with prompts of its own."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "guidellm.json"
        backend = f"kind=openai_http,target={target.url},model=sluice,api_key={target.key}"
        output_of(
            *(str(ENVIRONMENTS / "guidellm" / "bin" / "guidellm"), "run", "--backend", backend),
            *("--tokenizer", f"kind=hf_auto,model={tokenizer()}", "--profile", "kind=concurrent,streams=4"),
            *("--constraint", "kind=max_requests,count=16"),
            *("--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=12"),
            *("--output", f"kind=json,path={report}", "--disable-progress"),
        )
        (run,) = json.loads(report.read_text())["benchmarks"]
    totals = run["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (16, 0), totals


def aiperf(target: Target) -> None:
    """Run AIPerf for a short time: streamed chats with prompts of its own."""
    with tempfile.TemporaryDirectory() as folder:
        output_of(
            *(str(ENVIRONMENTS / "aiperf" / "bin" / "aiperf"), "profile", "--model", "sluice", "--url", target.url),
            *("--endpoint-type", "chat", "--streaming", "--tokenizer", str(tokenizer()), "--api-key", target.key),
            *("--request-count", "16", "--concurrency", "4", "--isl", "32", "--osl", "12", "--ui", "none"),
            *("--artifact-dir", folder),
            HF_HUB_OFFLINE="",  # offline, it takes a folder for the name of a repository
        )
        (report,) = Path(folder).rglob("profile_export_aiperf.json")
        found = json.loads(report.read_text())
    assert found["request_count"]["avg"] == 16, found["request_count"]
    assert not found.get("error_summary"), found["error_summary"]


def vllm(target: Target) -> None:
    """Run `vllm bench serve` for a short time, over both APIs."""
    command = ROOT / "build" / "peers" / "vllm" / "bin" / "vllm"
    assert command.exists(), f"no {command}; benchmarks/peers/run.py --peer vllm makes it"
    for backend, path in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
        with tempfile.TemporaryDirectory() as folder:
            output_of(
                *(str(command), "bench", "serve", "--backend", backend, "--base-url", target.url, "--endpoint", path),
                *("--model", "sluice", "--tokenizer", str(tokenizer()), "--dataset-name", "random", "--ignore-eos"),
                *("--random-input-len", "32", "--random-output-len", "12", "--num-prompts", "16"),
                *("--max-concurrency", "4", "--save-result", "--result-dir", folder, "--result-filename", "vllm.json"),
                OPENAI_API_KEY=target.key,
            )
            result = json.loads((Path(folder) / "vllm.json").read_text())
        found = result["completed"], result["failed"], result["total_output_tokens"]
        assert found == (16, 0, 16 * 12), f"{backend}: {found}"
