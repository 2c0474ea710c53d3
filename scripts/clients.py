"""Run common clients against a server of the bundled model that requires a key.

    python scripts/clients.py                 # all of them
    python scripts/clients.py curl sglang     # some
    python scripts/clients.py guidellm vllm   # the large ones

Stock packages run in an environment of their own, build/clients, which the first run makes from PyPI. The test suite
runs `openai` itself. Each client must get the same greedy text as the first, whole and streamed. Two run only when they
are named: guidellm, which installs some gigabytes, and `vllm bench serve`, which runs in the environment that
benchmarks/peers/run.py made for vLLM.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import secrets
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parent.parent
ENVIRONMENT = ROOT / "build" / "clients"
PROMPT = "What is a sluice?"
MAX_TOKENS = 24
LANGCHAIN = """
import sys
from langchain_openai import ChatOpenAI

url, key, prompt, max_tokens = sys.argv[1:]
chat = ChatOpenAI(model="sluice", base_url=url, api_key=key, temperature=0, max_tokens=int(max_tokens), max_retries=0)
whole = chat.invoke(prompt)
streamed = list(chat.stream(prompt))
assert "".join(part.content for part in streamed) == whole.content, "streamed otherwise"
assert whole.usage_metadata["output_tokens"] <= int(max_tokens), whole.usage_metadata
batch = chat.batch([prompt, prompt])
assert [answer.content for answer in batch] == [whole.content] * 2, "in a batch otherwise"
print(whole.content)
"""
OPENAI = """
import asyncio, sys
import openai

url, key, prompt, max_tokens = sys.argv[1:]
asked = dict(model="sluice", messages=[{"role": "user", "content": prompt}], temperature=0, max_tokens=int(max_tokens))

async def later():
    async with openai.AsyncOpenAI(base_url=url, api_key=key) as client:
        stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        parts = [part async for part in stream]
        assert parts[-1].usage.prompt_tokens_details.cached_tokens >= 0
        return "".join(part.choices[0].delta.content or "" for part in parts if part.choices)

with openai.OpenAI(base_url=url, api_key=key) as client:
    text = client.chat.completions.create(**asked).choices[0].message.content
    refused = client.with_options(api_key="wrong", max_retries=0)
    try:
        refused.models.list()
        raise SystemExit("a wrong key was taken")
    except openai.AuthenticationError:
        pass
assert asyncio.run(later()) == text, "streamed otherwise"
print(text)
"""


@dataclass(frozen=True)
class Target:
    """The server of the clients."""

    url: str
    key: str

    def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """Send a request without a client."""
        address = urlsplit(self.url)
        assert address.hostname is not None
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
        try:
            connection.request("POST", path, json.dumps(body), {"Authorization": f"Bearer {self.key}"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@contextmanager
def server() -> Iterator[Target]:
    """Serve the bundled model with a key of this run."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    key = secrets.token_hex(8)
    command = [sys.executable, "-m", "sluice", "serve", "--port", str(port), "--served-model-name", "sluice"]
    with subprocess.Popen([*command, "--api-key", key], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            while "curl" not in (line := process.stdout.readline()):
                assert line or process.poll() is None, "the server ended"
            yield Target(f"http://127.0.0.1:{port}", key)
        finally:
            process.terminate()


def output_of(*command: str) -> str:
    """Return the output of a command, which must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{shlex.join(command)[:200]}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def chat_body(**more: Any) -> dict[str, Any]:
    asked = {"model": "sluice", "messages": [{"role": "user", "content": PROMPT}], "temperature": 0}
    return asked | {"max_tokens": MAX_TOKENS} | more


def curl(target: Target) -> str:
    """Run curl whole and streamed, as the README shows it."""
    auth, kind = f"Authorization: Bearer {target.key}", "Content-Type: application/json"
    command = ["curl", "-sS", "-N", f"{target.url}/v1/chat/completions", "-H", auth, "-H", kind, "-d"]
    text = json.loads(output_of(*command, json.dumps(chat_body())))["choices"][0]["message"]["content"]
    streamed = output_of(*command, json.dumps(chat_body(stream=True)))
    *events, done = [line.removeprefix("data: ") for line in streamed.splitlines() if line]
    assert done == "[DONE]"
    parts = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(parts) == text, "streamed otherwise"
    return str(text)


def python_client(code: str, target: Target) -> str:
    python = str(ENVIRONMENT / "bin" / "python")
    return output_of(python, "-c", code, f"{target.url}/v1", target.key, PROMPT, str(MAX_TOKENS)).removesuffix("\n")


def sglang(target: Target) -> str:
    """Send the requests of SGLang's documentation and benchmark: whole, streamed, as a batch, and the flush."""
    status, tokenized = target.post("/tokenize", {"messages": chat_body()["messages"]})
    assert status == 200, tokenized
    ids = json.loads(tokenized)["tokens"]
    sampling = {"temperature": 0, "max_new_tokens": MAX_TOKENS}
    status, answer = target.post("/generate", {"input_ids": ids, "sampling_params": sampling})
    assert status == 200, answer
    whole = json.loads(answer)
    benchmark = {"stream": True, "lora_path": None, "return_logprob": False, "logprob_start_len": -1}
    status, stream = target.post("/generate", {"input_ids": ids, "sampling_params": sampling} | benchmark)
    assert status == 200, stream
    *events, done = [line.removeprefix(b"data: ") for line in stream.splitlines() if line]
    assert done == b"[DONE]"
    last = json.loads(events[-1])
    assert (last["text"], last["meta_info"]["completion_tokens"]) == (
        whole["text"],
        whole["meta_info"]["completion_tokens"],
    )
    status, batch = target.post("/generate", {"input_ids": [ids, ids], "sampling_params": sampling})
    assert [item["text"] for item in json.loads(batch)] == [whole["text"]] * 2
    status, text = target.post("/generate", {"text": "The water", "sampling_params": {"max_new_tokens": 4}})
    assert status == 200, text
    status, flushed = target.post("/flush_cache", {})
    assert (status, json.loads(flushed)["success"]) == (200, True)
    return str(whole["text"])


def guidellm(target: Target) -> str:
    """Run guidellm for a short time: chats with prompts of its own."""
    folder = ROOT / "src" / "sluice" / "models" / "sluice-nano"
    report = ENVIRONMENT / "guidellm.json"
    output_of(
        str(ENVIRONMENT / "bin" / "guidellm"),
        "run",
        "--backend",
        f"kind=openai_http,target={target.url},model=sluice,api_key={target.key}",
        "--tokenizer",
        f"kind=hf_auto,model={folder}",
        "--profile",
        "kind=concurrent,streams=4",
        "--constraint",
        "kind=max_requests,count=16",
        "--data",
        "kind=synthetic_text,prompt_tokens=32,output_tokens=12",
        "--output",
        f"kind=json,path={report}",
        "--disable-progress",
    )
    (run,) = json.loads(report.read_text())["benchmarks"]
    totals = run["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (16, 0), totals
    return ""


def vllm(target: Target) -> str:
    """Run `vllm bench serve` for a short time, over both APIs."""
    program = ROOT / "build" / "peers" / "vllm" / "bin" / "vllm"
    assert program.exists(), f"no {program}; benchmarks/peers/run.py --peer vllm makes it"
    folder = ROOT / "src" / "sluice" / "models" / "sluice-nano"
    os.environ["OPENAI_API_KEY"] = target.key
    for backend, path in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
        output_of(
            *(str(program), "bench", "serve", "--backend", backend, "--base-url", target.url, "--endpoint", path),
            *("--model", "sluice", "--tokenizer", str(folder), "--dataset-name", "random", "--random-input-len", "32"),
            *("--random-output-len", "12", "--num-prompts", "16", "--max-concurrency", "4", "--ignore-eos"),
            *("--save-result", "--result-dir", str(ENVIRONMENT), "--result-filename", "vllm.json"),
        )
        result = json.loads((ENVIRONMENT / "vllm.json").read_text())
        found = result["completed"], result["failed"], result["total_output_tokens"]
        assert found == (16, 0, 16 * 12), f"{backend}: {found}"
    return ""


CLIENTS: Mapping[str, Callable[[Target], str]] = {
    "curl": curl,
    "openai": lambda target: python_client(OPENAI, target),
    "langchain": lambda target: python_client(LANGCHAIN, target),
    "sglang": sglang,
    "guidellm": guidellm,
    "vllm": vllm,
}
LARGE = frozenset({"guidellm", "vllm"})
PACKAGES = {"openai": "openai", "langchain": "langchain-openai", "guidellm": "guidellm"}


def install(names: list[str]) -> None:
    """Install the packages of the chosen clients in an environment of their own."""
    wanted = [PACKAGES[name] for name in names if name in PACKAGES]
    if not wanted:
        return
    if not (ENVIRONMENT / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
    pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
    subprocess.run([*pip, "--only-binary", ":all:", *wanted], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(CLIENTS)}; all but the large")
    args = parser.parse_args()
    unknown = set(args.clients) - CLIENTS.keys()
    if unknown:
        parser.error(f"unknown clients {', '.join(sorted(unknown))}; known: {', '.join(CLIENTS)}")
    names = args.clients or [name for name in CLIENTS if name not in LARGE]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    install(names)
    texts: dict[str, str] = {}
    with server() as target:
        for name in names:
            text = CLIENTS[name](target)
            if text:
                texts[name] = text
            print(f"{name}: works", flush=True)
    assert len(set(texts.values())) <= 1, f"clients got different texts: {texts}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
