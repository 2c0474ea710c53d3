"""Agents of the terminal, in their stock packages: each reads a file by a tool of its own, and answers from it.

They talk to `scripted_model`, and reach nothing else: other addresses lead to a proxy that is not there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from client_programs.scripted_model import ANSWER, CHANGED, FILE, NAME, SECRET
from client_programs.target import ENVIRONMENTS, PROGRAMS, Target, free_port, started

QUESTION = f"Read {FILE}. Which gate is open?"
NOWHERE = "http://127.0.0.1:9"
"""A proxy that refuses every connection."""
CODEX = ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
NO_ANALYTICS = "[analytics]\nenabled = false\n"


@dataclass(frozen=True)
class Place:
    """A server, and a home folder in which an agent works."""

    url: str
    home: Path

    def write(self, name: str, text: str) -> None:
        """Write a file of settings."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def ask(self, environment: str, program: str, *arguments: str, **settings: str) -> None:
        """Run a program of a client's environment, and check that its answer is what the file says."""
        said = self.run(ENVIRONMENTS / environment / "node_modules" / ".bin" / program, *arguments, **settings)
        assert ANSWER in said, said[-2000:]

    def run(self, program: Path, *arguments: str, **settings: str) -> str:
        """Return what a program says in a folder that has the file."""
        (work := self.home / "work").mkdir()
        (work / FILE).write_text(SECRET)
        known = {"PATH": os.environ["PATH"], "HOME": str(self.home), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOWHERE)
        done = subprocess.run(
            [program, *arguments],
            cwd=work,
            env=known | proxies | settings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
        )
        said = f"{program.name}: {done.stdout}{done.stderr}"
        assert done.returncode == 0, said[-4000:]
        return said


@contextmanager
def place() -> Iterator[Place]:
    command = [sys.executable, str(PROGRAMS / "scripted_model.py"), "--port", str(port := free_port())]
    with tempfile.TemporaryDirectory(prefix="sluice-", dir=ENVIRONMENTS) as home, started(command):
        yield Place(f"http://127.0.0.1:{port}", Path(home))


def codex_cli(_: Target) -> None:
    """Run Codex with a provider of its own: the Responses API."""
    with place() as at:
        chosen = f'model = "{NAME}"\nmodel_provider = "{NAME}"\n{NO_ANALYTICS}'
        provider = f'name = "Sluice"\nbase_url = "{at.url}/v1"\nwire_api = "responses"\n'
        at.write(".codex/config.toml", f"{chosen}[model_providers.{NAME}]\n{provider}")
        at.ask("codex-cli", *CODEX, QUESTION)


def codex_oss(_: Target) -> None:
    """Run Codex as it uses Ollama."""
    with place() as at:
        at.write(".codex/config.toml", NO_ANALYTICS)
        oss = ("--oss", "--local-provider", "ollama", "-m", NAME)
        at.ask("codex-oss", *CODEX, *oss, QUESTION, CODEX_OSS_BASE_URL=f"{at.url}/v1")


def claude_code_cli(_: Target) -> None:
    """Run Claude Code: Anthropic's messages."""
    with place() as at:
        at.ask(
            *("claude-code-cli", "claude", "-p", QUESTION, "--allowedTools", "Bash(cat:*)"),
            ANTHROPIC_BASE_URL=at.url,
            ANTHROPIC_AUTH_TOKEN="none",
            ANTHROPIC_MODEL=NAME,
            ANTHROPIC_DEFAULT_HAIKU_MODEL=NAME,
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_AUTOUPDATER="1",
        )


def opencode(_: Target) -> None:
    """Run opencode with a provider of its own: chats."""
    with place() as at:
        options = {"baseURL": f"{at.url}/v1", "apiKey": "none"}
        provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {NAME: {"name": NAME}}}
        models = {"model": f"{NAME}/{NAME}", "small_model": f"{NAME}/{NAME}", "enabled_providers": [NAME]}
        settings = models | {"provider": {NAME: provider}, "share": "disabled", "autoupdate": False}
        at.write(".config/opencode/opencode.json", json.dumps(settings))
        at.ask("opencode", "opencode", "run", QUESTION, OPENCODE_DISABLE_MODELS_FETCH="1")


def aider(_: Target) -> None:
    """Run aider, which writes what the model says into the file."""
    with place() as at:
        quiet = ("--no-git", "--yes-always", "--no-show-model-warnings", "--analytics-disable", "--no-check-update")
        asked = ("--model", f"openai/{NAME}", "--edit-format", "whole", FILE, "--message", "Shut the gate.")
        program = ENVIRONMENTS / "aider" / "bin" / "aider"
        at.run(program, *quiet, *asked, OPENAI_API_BASE=f"{at.url}/v1", OPENAI_API_KEY="none")
        assert (at.home / "work" / FILE).read_text().strip() == CHANGED
