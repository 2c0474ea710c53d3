"""Command lines of vLLM and SGLang: each starts, or is refused for the reason that is stated."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from sluice import cli
from sluice.assembly.resolve import resolve
from sluice.cli.commands import configs
from sluice.config import ConfigError
from sluice.http.apis.sglang import NativeFields, NativeSampling, NativeText
from sluice.http.base.body import fields_of
from sluice.http.base.unsupported_fields import UNSUPPORTED, instead_of
from sluice.http.call.constraint_fields import ConstraintFields, NativeConstraints
from sluice.http.call.generate_call import SamplingFields
from sluice.http.call.openai import ChatFields, CompletionFields
from sluice.http.call.template_fields import TemplateFields
from sluice.http.call.tools import ToolFields

VLLM = {
    "": "",
    "--dtype auto --api-key token-abc123": "",
    "--dtype half": "",
    "--host 0.0.0.0 --port 8001": "",
    "--max-model-len 4096": "",
    "--max-model-len 32K --max-num-seqs 16": "",
    "--gpu-memory-utilization 0.9": "",
    "--gpu-memory-utilization 1": "",
    "--gpu-memory-utilization 0": "--gpu-memory-utilization must be a share between 0 and 1, got 0",
    "--gpu-memory-utilization 1.2": "--gpu-memory-utilization must be a share between 0 and 1, got 1.2",
    "--tensor-parallel-size 1 --pipeline-parallel-size 1": "",
    "--tensor-parallel-size 4": "",
    "-tp 8 -pp 2": "",
    "-tp 2 --async-scheduling": "",
    "-pp 2 --async-scheduling": "is not supported beside --pp-size 2",
    "-tp 2 --nnodes 3": "--nnodes must divide",
    "-tp 0": "--tp-size must be at least 1, got 0",
    "-tp=1": "",
    "--data-parallel-size 4": "start one server for each replica",
    "--enable-expert-parallel": "--enable-expert-parallel True: it is not supported; --tp-size shares every",
    "--distributed-executor-backend uni": "",
    "-tp 2 --distributed-executor-backend uni": "uni is one rank alone, and --tp-size 2 needs several; take mp",
    "--distributed-executor-backend ray": "ray places several ranks: give --tp-size or --pp-size",
    "-tp 2 --nnodes 2 --dist-init-addr a:1 --dist-token-file t --distributed-executor-backend ray": "Ray knows",
    "--enable-chunked-prefill --max-num-batched-tokens 2048": "",
    "--no-enable-chunked-prefill": "",
    "--no-enable-prefix-caching": "",
    "--enable-prefix-caching --block-size 16": "",
    "--enforce-eager": "",
    "--trust-remote-code": "",
    "--quantization compressed-tensors": "",
    "-q none": "",
    "--quantization modelopt": "--quantization must be one of none, int8, int4, compressed-tensors",
    "--kv-cache-dtype fp8": "",
    "--served-model-name my-model,gpt-4": "",
    "--enable-auto-tool-choice --tool-call-parser hermes": "",
    "--reasoning-parser deepseek_r1": "",
    "--enable-lora --lora-modules sql=./adapter --max-loras 4 --max-lora-rank 32": "",
    """--enable-lora --lora-modules '{"name": "sql", "path": "./adapter", "base_model_name": "m"}' a=./b""": "",
    "--max-loras 4": "--max-loras 4 needs --enable-lora",
    "--enable-lora --max-cpu-loras 8": "adapters stay in host memory until they are unloaded",
    "--lora-modules a=./b a=./c": "the name 'a' is there twice",
    "--lora-modules =./b": "the name of an adapter must be",
    """--lora-modules '{"name": "sql"}'""": "an object needs name and path",
    """--speculative-config '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'""": "",
    """-sc '{"method": "suffix"}'""": "",
    """--speculative-config '{"method": "medusa"}'""": "--speculative-algorithm must be one of",
    """--speculative-config '{"method": "ngram", "disable_padded_drafter_batch": true}'""": "fields that are: method,",
    """--speculative-config '["ngram"]'""": "must be a JSON object",
    """--speculative-config ngram""": "must be a JSON object",
    """--speculative-config '{"method": "eagle3", "model": "a/head", "num_speculative_tokens": 3}'""": "",
    """--kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv-events"}'""": "",
    """--kv-events-config '{"enable_kv_cache_events": true, "publisher": "null"}'""": "publisher must be 'zmq'",
    """--kv-events-config '{"topic": "kv-events"}'""": "--kv-events-topic kv-events needs --kv-events",
    """--kv-transfer-config '{"kv_role": "kv_both"}'""": "prefill and decode share one engine",
    """--limit-mm-per-prompt '{"image": 4}'""": "models of text alone are served",
    "-O3": "--disable-cuda-graph and --cuda-graph-max-bs control CUDA graphs",
    "--load-format auto": "",
    "--load-format dummy": "convert the weights to safetensors",
    "--seed 42": "",
    "--tokenizer some/tokenizer --tokenizer-mode auto": "",
    "--revision main --download-dir /models": "",
    "--swap-space 16": "--kv-host-bytes keeps KV in host memory",
    "--cpu-offload-gb 10": "weights stay on the device",
    "--disable-log-requests": "",
    "--enable-log-requests": "--log-level info",
    "--scheduling-policy priority --async-scheduling": "",
    "--long-prefill-token-threshold 512 --max-num-partial-prefills 2": "",
    "--max-logprobs 20": "",
    "--max-logprobs 100": "up to 20 alternatives",
    "--uvicorn-log-level warning": "--log-level info",
    "--runner pooling": "",
    "--api-server-count 2": "one process serves HTTP",
    """--allowed-origins '["https://a.example"]' --allowed-methods '["*"]' --allowed-headers '["*"]'""": "",
    "--allow-credentials": "the server uses no cookies",
    "--ssl-certfile a.pem --ssl-keyfile a.key --ssl-cert-reqs 0": "",
    "--ssl-certfile a.pem --ssl-keyfile a.key --ssl-ca-certs ca.pem": "clients send API keys and no certificates",
    "--num-gpu-blocks-override 1024": "--max-total-tokens sets the size of the KV pool",
    "--max-cudagraph-capture-size 64": "",
    "--max-num-batched-token 512": "did you mean --max-num-batched-tokens?",
}
SGLANG = {
    "--port 30000": "",
    "--tp 2": "",
    "--tp 2 --kv-disk pages": "--kv-disk pages is not supported beside --tp-size 2",
    "--tp 2 --kv-host-bytes 30G": "",
    "--pp 2 --kv-host-bytes 30G --offload-above 64": "--offload-above 64 is not supported beside --pp-size 2",
    "--tp 2 --device cuda:1": "--device cuda:1 names one device",
    "--tp-size 1 --dp-size 1 --pp-size 1": "",
    "--nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:5000": "--nnodes must divide --tp-size times --pp-size, 1 r",
    "--tp 2 --nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:5000": "--nnodes 2 needs --dist-token-file",
    "--tp 2 --nnodes 2 --node-rank 2 --dist-init-addr a:1 --dist-token-file t": "--node-rank must be from 0",
    "--tp 2 --nnodes 2 --node-rank 1 --dist-init-addr a --dist-token-file t": "must be HOST:PORT, as 10.0.0.1:5000",
    "--tp 2 --nnodes 2 --node-rank 1 --dist-init-addr a:1 --dist-token-file t": "",
    "--mem-fraction-static 0.7": "",
    "--mem-fraction-static 1": "--mem-fraction-static must be a share between 0 and 1, got 1",
    "--chunked-prefill-size 4096 --max-prefill-tokens 16384": "",
    "--disable-radix-cache": "",
    "--schedule-policy lpm": "",
    "--schedule-policy dfs-weight": "got 'dfs-weight'; the nearest is lpm",
    "--schedule-policy lof": "got 'lof'; the nearest is fcfs",
    "--schedule-policy random": "got 'random'; the nearest is fcfs",
    "--schedule-conservativeness 0.3": "",
    "--enable-mixed-chunk": "",
    "--enable-dynamic-chunking": "",
    "--pp-async-batch-depth 0": "",
    "--pp-async-batch-depth 2": "--depth sets the steps in flight",
    "--pp-max-micro-batch-size 8": "streams are divided evenly among the steps in flight",
    "--enable-priority-scheduling --schedule-low-priority-values-first": "",
    "--context-length 8192": "",
    "--attention-backend flashinfer --sampling-backend pytorch": "",
    "--attention-backend torch_native": "",
    "--grammar-backend llguidance": "",
    "--grammar-backend xgrammar": "leave it out; llguidance holds answers to grammars",
    "--constrained-json-disable-any-whitespace": "",
    "--constrained-json-whitespace-pattern x": "send guided_whitespace_pattern with each request",
    "--enable-metrics": "",
    "--quantization w8a8_int8": "",
    "--enable-torch-compile": "fused kernels are used",
    "--random-seed 7": "",
    "--max-running-requests 128 --max-total-tokens 64K": "",
    "--stream-interval 1": "",
    "--stream-interval 8": "every token is sent as soon as it is known",
    "--disable-cuda-graph": "",
    "--cuda-graph-max-bs 16": "",
    "--disable-overlap-schedule": "",
    "--speculative-algorithm NGRAM --speculative-num-draft-tokens 12 --speculative-ngram-capacity 10m": "",
    "--speculative-algorithm NGRAM --speculative-ngram-max-bfs-breadth 10": "guesses are a chain",
    "--speculative-algorithm NGRAM --speculative-eagle-topk 4": "only --speculative-eagle-topk 1 is supported",
    "--speculative-algorithm NGRAM --speculative-num-steps 3 --speculative-num-draft-tokens 8": "contradict each other",
    "--speculative-algorithm NGRAM --speculative-num-draft-tokens 1": "at least 2, a guess and the token before it",
    "--speculative-algorithm NGRAM --speculative-num-steps 500": "at most are 128",
    "--speculative-algorithm NGRAM --speculative-ngram-capacity 5": "must be 0, for none, or at least 64",
    "--speculative-algorithm NGRAM --speculative-ngram-max-match-window-size 100": "must be at most 64, got 100",
    "--speculative-algorithm NGRAM --speculative-ngram-max-match-window-size 3"
    " --speculative-ngram-min-match-window-size 4": "is more than",
    "--speculative-num-steps 3": "--speculative-num-steps 3 needs --speculative-algorithm",
    "--speculative-algorithm EAGLE": "--speculative-algorithm must be one of",
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path a/head --speculative-num-steps 3": "",
    "--lora-paths a=./adapter --max-loras-per-batch 4 --lora-eviction-policy lru": "",
    "--enable-lora --lora-target-modules q_proj": "adapters may change every linear layer",
    "--log-requests": "--log-level info",
    "--watchdog-timeout 300": "",
    "--enable-hierarchical-cache --hicache-ratio 2": "--kv-host-bytes keeps KV in host memory",
    "--kv-cache-dtype fp8_e5m2 --page-size 16": "",
    "--tokenizer-path some/tokenizer --trust-remote-code": "",
    "--is-embedding": "",
    "--disaggregation-mode prefill": "prefill and decode share one engine",
    "--prefill-max-requests 4": "",
    "--enable-priority-scheduling --schedule-policy fcfs": "",
    "--enable-priority-scheduling --scheduling-policy fcfs": "",
    "--enable-priority-scheduling --schedule-policy lpm": "contradict each other",
    "--disable-radix-cache --no-enable-prefix-caching": "",
    "--no-enable-chunked-prefill --chunked-prefill-size 512": "contradict each other",
    "--skip-tokenizer-init": "send token ids",
}


PAGE = Path(__file__).parents[2] / "docs" / "migrate.md"
PARSER = cli.build_parser()
COMMANDS = re.findall(r"`sluice ([^`]+)`", PAGE.read_text())


def outcome(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return why a command line is refused; an empty text: it is not."""
    try:
        given = vars(PARSER.parse_args(["serve", *arguments]))
        given.pop("run")
        _, engine, _ = configs(given)
        resolve(engine, "cuda")
    except ConfigError as error:
        return str(error)
    except SystemExit:
        return capsys.readouterr().err
    return ""


def check(capsys: pytest.CaptureFixture[str], model: Sequence[str], lines: Mapping[str, str]) -> None:
    """Check that each command line starts, or is refused for its reason. A failure lists all lines that do not."""
    found = {line: outcome(capsys, *model, *shlex.split(line)) for line in lines}
    wrong = {line: said for line, said in found.items() if bool(said) != bool(lines[line]) or lines[line] not in said}
    assert wrong == {}


def test_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    check(capsys, ["some/model"], VLLM)


def test_sglang(capsys: pytest.CaptureFixture[str]) -> None:
    check(capsys, ["--model-path", "some/model"], SGLANG)


def test_two_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "some/model and --model-path other/model contradict each other" in outcome(
        capsys, "some/model", "--model", "other/model"
    )


def test_the_commands_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        name, *arguments = shlex.split(command)
        if name == "serve":
            assert outcome(capsys, *arguments) == "", command
        else:
            PARSER.parse_args([name, *arguments])


OPENAI = frozenset().union(
    *map(fields_of, (CompletionFields, ChatFields, SamplingFields, TemplateFields, ConstraintFields, ToolFields))
)
SGLANGS = frozenset().union(*map(fields_of, (NativeFields, NativeSampling, NativeText, NativeConstraints)))
FIELDS = {"vLLM": OPENAI, "SGLang's `/generate`": SGLANGS, "llama-server": OPENAI}
"""Engine -> the fields that are implemented."""


@pytest.mark.parametrize("engine", FIELDS)
def test_the_fields_of_the_page(engine: str) -> None:
    """A field that the page calls the same is implemented, and what it calls refused is refused."""
    implemented, others = FIELDS[engine], UNSUPPORTED
    table = PAGE.read_text().partition(f"| field of {engine} | here |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()]
    assert len(rows) >= 4
    for left, right in rows:
        for name in re.findall(r"`(\w+)`", left):
            match re.match(r"the same|no effect|refused|ignored", right):
                case None:
                    pytest.fail(right)
                case found if found[0] == "the same":
                    assert name in implemented
                case found if found[0] == "no effect":
                    assert isinstance(others[name], type), name
                case found if found[0] == "refused":
                    assert isinstance(others[name], tuple), name
                    assert (instead_of(name, implemented) or "") in right, name
                case _:
                    assert name not in implemented | others.keys()
