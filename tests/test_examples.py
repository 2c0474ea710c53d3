"""Every example runs as its docstring says, and prints what it promises."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from any_checkpoint import any_checkpoint
from processes import free_port
from serve_process import announced, server
from sluice.models import default_model, hub

EXAMPLES = Path(__file__).parents[1] / "examples"
PRINTS = {
    "embeddings.py": "vectors of 256 numbers",
    "library.py": "352 of 391 prompt tokens cached",
    "custom_scheduling_pass.py": "shortest first:      [7, 4, 1]",
    "custom_attention_backend.py": "tokens by reference:",
    "custom_sparse_policy.py": "import:custom_sparse_policy:Strided: (",
    "simulated_trace.py": "chunked: longest gap of a stream 18 ms, TTFT of the prompt 280 ms",
}


TAKES_MODEL = ("embeddings.py", "library.py")
"""The others take the default one, here a random one in its place."""


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_runs(name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """An example that does not run is worse than none."""
    monkeypatch.setattr(sys, "argv", [name, *([str(any_checkpoint())] if name in TAKES_MODEL else [])])
    for module in (default_model, hub):
        monkeypatch.setattr(module, "default_checkpoint", lambda cache, report=None: any_checkpoint())
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert PRINTS[name] in capfd.readouterr().out


def test_the_client_talks_to_a_server() -> None:
    port = free_port()
    with server("-m", "sluice", "serve", str(any_checkpoint()), "--port", str(port)) as process:
        announced(process)
        printed = run("client.py", f"http://127.0.0.1:{port}")
    assert "output tokens" in printed
    assert "refused: Error code: 400 - temperature" in printed


def test_the_client_explains_itself_and_a_server_that_is_not_there() -> None:
    """`--help` was taken for a URL, and both ended in a traceback."""
    assert "http" in run("client.py", "--help")
    url = f"http://127.0.0.1:{free_port()}"
    done = subprocess.run([sys.executable, str(EXAMPLES / "client.py"), url], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"no server at '{url}': ")
    assert "Traceback" not in done.stderr


def test_no_example_is_left_out() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*PRINTS, "client.py"}
