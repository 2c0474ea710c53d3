"""Run common clients against a server of the default model that requires a key.

    python scripts/clients.py                     # all but the large ones
    python scripts/clients.py curl sglang         # some
    python scripts/clients.py guidellm aiperf     # large ones
    python scripts/clients.py --table             # and print the table of docs/clients.md

Stock packages run in an environment each, build/clients/NAME, which the first run makes from PyPI or, for those of npm,
from npm's registry. The test suite runs
`openai` itself. Clients that ask the same question must get the same greedy text, whole and streamed. Large clients run
only when they are named: they install some gigabytes; `vllm bench serve` runs in the environment that
benchmarks/peers/run.py made for vLLM.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from client_programs import large, recorded, terminal_agents
from client_programs.target import ENVIRONMENTS, MAX_TOKENS, PROGRAMS, PROMPT, Target, output_of, server

Run = Callable[[Target], str | None]
"""Runs a client. Returns the text of its greedy answer, if it asks the question of all."""


@dataclass(frozen=True)
class Client:
    """A client of the table."""

    run: Run
    what: str
    """What it sends."""
    packages: tuple[str, ...] = ()
    """To install; the first one's version is shown."""
    is_npm: bool = False
    """Its packages are npm's."""
    is_large: bool = False
    needs_torch: bool = False
    """It finds Sluice's own torch, rather than to install gigabytes of CUDA."""


def program(name: str) -> Run:
    """Return how to run `client_programs/NAME_client.py` in the environment of its package."""

    def run(target: Target) -> str:
        python, file = ENVIRONMENTS / name / "bin" / "python", PROGRAMS / f"{name.replace('-', '_')}_client.py"
        return output_of(str(python), str(file), target.url, target.key, PROMPT, str(MAX_TOKENS)).removesuffix("\n")

    return run


def program_of_npm(name: str) -> Run:
    """Return how to run `client_programs/NAME_client.mjs` beside the packages of its environment."""

    def run(target: Target) -> str:
        folder = ENVIRONMENTS / name.replace("_", "-")
        shutil.copy(PROGRAMS / f"{name}_client.mjs", file := folder / "client.mjs")
        return output_of("node", str(file), target.url, target.key, PROMPT, str(MAX_TOKENS)).removesuffix("\n")

    return run


def qwen3(_: Target) -> None:
    """Run openai against a tiny Qwen3, whose chat template has a switch and reasoning."""
    from client_programs.tiny_qwen3 import write_tiny_qwen3

    install("openai", CLIENTS["openai"])
    with tempfile.TemporaryDirectory() as folder, server(write_tiny_qwen3(Path(folder)), "qwen3") as target:
        python = ENVIRONMENTS / "openai" / "bin" / "python"
        output_of(str(python), str(PROGRAMS / "qwen3_client.py"), target.url, target.key, PROMPT, str(MAX_TOKENS))


AGENT = "an agent's turn (a scripted model's call, the tool's result, the answer)"
CLIENTS = {
    "curl": Client(recorded.curl, "chats, whole and streamed"),
    "openai": Client(
        program("openai"),
        "models, chats, tools, `parse()`, completions with log-probabilities, embeddings; sync and async",
        ("openai",),
    ),
    "qwen3": Client(qwen3, "openai over a tiny Qwen3: `enable_thinking`, lists of parts, thoughts of earlier turns"),
    "agents_chat": Client(
        program("agents_chat"),
        "OpenAI's Agents SDK over chats: the loop around a tool, whole and streamed",
        ("openai-agents",),
    ),
    "langchain": Client(
        program("langchain"),
        "`ChatOpenAI`: invoke, stream, batch; `bind_tools`, `with_structured_output`",
        ("langchain-openai",),
    ),
    "llamaindex": Client(
        program("llamaindex"), "`OpenAILike`: chats, completions, a required tool", ("llama-index-llms-openai-like",)
    ),
    "litellm": Client(program("litellm"), "`openai/`, `hosted_vllm/`, `text-completion-openai/`", ("litellm",)),
    "ollama": Client(program("ollama"), "list, show, chat, generate; another model", ("ollama",)),
    "smolagents": Client(
        program("smolagents"), "`ToolCallingAgent` (calls are required) to its end", ("smolagents[openai]",)
    ),
    "pydantic-ai": Client(
        program("pydantic-ai"), "tools and typed answers, whole and streamed", ("pydantic-ai-slim[openai]",)
    ),
    "dspy": Client(program("dspy"), "text, and `Predict` by a schema", ("dspy",)),
    "ai-sdk": Client(
        program_of_npm("ai_sdk"),
        "Vercel's AI SDK: text, streams, tools, objects",
        ("ai", "@ai-sdk/openai-compatible", "zod"),
        True,
    ),
    "telemetry": Client(
        program("telemetry"),
        "OpenTelemetry's GenAI attributes of openai's calls",
        (
            "opentelemetry-instrumentation-openai-v2==2.4b0",
            "opentelemetry-util-genai==1.0b0",  # without a pin, a release comes that it cannot import
            *("opentelemetry-sdk", "openai", "httpx"),
        ),
    ),
    "langfuse": Client(program("langfuse"), "its drop-in for openai, whole and streamed", ("langfuse", "openai")),
    "responses": Client(
        program("responses"), "openai's responses: create, stream, parse, functions, continued, listed", ("openai",)
    ),
    "agents": Client(program("agents"), "the OpenAI Agents SDK's loop over responses", ("openai-agents",)),
    "anthropic": Client(
        program("anthropic"), "messages whole, streamed and counted, sync and async; a loop of tools", ("anthropic",)
    ),
    "claude-code": Client(recorded.claude_code, "its recorded calls: two turns with a tool, counted tokens"),
    "codex": Client(recorded.codex, "its recorded calls: two turns with a function, nothing stored"),
    "codex-cli": Client(terminal_agents.codex_cli, f"an own provider: {AGENT}", ("@openai/codex",), True),
    "codex-oss": Client(terminal_agents.codex_oss, f"`--oss`, as of Ollama: {AGENT}", ("@openai/codex",), True),
    "claude-code-cli": Client(
        terminal_agents.claude_code_cli, f"`claude -p`: {AGENT}", ("@anthropic-ai/claude-code",), True
    ),
    "opencode": Client(terminal_agents.opencode, f"`opencode run`: {AGENT}", ("opencode-ai",), True),
    "aider": Client(terminal_agents.aider, "a file that it edits as a scripted model says", ("aider-chat",)),
    "open-webui": Client(recorded.open_webui, "its recorded calls: models, chat, titles, Ollama's tags and chat"),
    "sglang": Client(recorded.sglang, "`/generate` whole, streamed, as a batch; `/flush_cache`"),
    "lm-eval": Client(
        large.lm_eval,
        "`local-completions` (log-probabilities), `local-chat-completions`",
        ("lm-eval[api]", "transformers"),
        is_large=True,
    ),
    "guidellm": Client(large.guidellm, "16 synthetic chats", ("guidellm",), is_large=True, needs_torch=True),
    "aiperf": Client(large.aiperf, "16 synthetic streamed chats", ("aiperf",), is_large=True),
    "vllm": Client(large.vllm, "`vllm bench serve`: openai, openai-chat", is_large=True),
}


def install(name: str, client: Client) -> None:
    """Install the packages of a client in an environment of its own."""
    folder = ENVIRONMENTS / name
    if not client.packages or (folder / "installed").exists():
        return
    if client.is_npm:
        _install_npm(folder, client.packages)
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    python = folder / "bin" / "python"
    if client.needs_torch:
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        Path(output_of(str(python), "-c", ask).strip(), "torch_of_sluice.pth").write_text(
            output_of(sys.executable, "-c", ask)
        )
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-qq", "install", "--prefer-binary"]
    subprocess.run([*pip, *client.packages], check=True)
    (folder / "installed").touch()


def _install_npm(folder: Path, packages: Sequence[str]) -> None:
    """Install packages of npm, and what they do once they are installed."""
    npm = shutil.which("npm")
    assert npm is not None, "npm is not on this machine"
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, *packages], check=True)
    for package in packages:  # npm may leave this out
        root = folder / "node_modules" / package
        if after := json.loads((root / "package.json").read_text()).get("scripts", {}).get("postinstall"):
            subprocess.run(after.split(), cwd=root, check=True, stdout=subprocess.DEVNULL)
    (folder / "installed").touch()


def version_of(name: str, client: Client) -> str:
    """Return the version of a client's package, as it is installed."""
    if name == "qwen3":
        return version_of("openai", CLIENTS["openai"])
    if not client.packages:
        return output_of("curl", "--version").split()[1] if name == "curl" else "recorded"
    if client.is_npm:
        file = ENVIRONMENTS / name / "node_modules" / client.packages[0] / "package.json"
        return str(json.loads(file.read_text())["version"])
    package = re.split(r"[\[=]", client.packages[0])[0]
    ask = f"from importlib.metadata import version; print(version({package!r}))"
    return output_of(str(ENVIRONMENTS / name / "bin" / "python"), "-c", ask).strip()


def run_all(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Run clients against one server. Returns a row of the table for each that works, and the names of the others."""
    texts: dict[str, str] = {}
    rows: list[str] = []
    failed: list[str] = []
    with server() as target:
        for name in names:
            client = CLIENTS[name]
            if client.is_npm and shutil.which("npm") is None:
                print(f"{name}: left out, as npm is not on this machine", flush=True)
                continue
            try:
                install(name, client)
                text = client.run(target)
                assert not text or set(texts.values()) <= {text}, f"got {text!r}, and others {texts}"
            except (AssertionError, subprocess.SubprocessError) as error:
                failed.append(name)
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                continue
            if text:
                texts[name] = text
            print(f"{name}: works", flush=True)
            rows.append(f"| {name} | {version_of(name, client)} | {client.what} | works |")
    return rows, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(CLIENTS)}; all but the large")
    parser.add_argument("--table", action="store_true", help="print a table of what worked, with versions")
    args = parser.parse_args()
    unknown = set(args.clients) - CLIENTS.keys()
    if unknown:
        parser.error(f"unknown clients {', '.join(sorted(unknown))}; known: {', '.join(CLIENTS)}")
    rows, failed = run_all(args.clients or [name for name, client in CLIENTS.items() if not client.is_large])
    if args.table:
        print(
            f"\n{datetime.datetime.now().astimezone().date()}\n",
            "| client | version | what was run | result |\n|---|---|---|---|",
            *rows,
            sep="\n",
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
