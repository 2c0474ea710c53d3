"""What each option comes to, and why; `sluice explain`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from sluice import cli
from sluice.assembly.explain import explain
from sluice.assembly.resolve import resolve
from sluice.config import ENGINE_GROUPS, GROUPS, EngineConfig, ServerConfig, options_of


def explained(**options: Any) -> dict[str, tuple[Any, str]]:
    resolution = resolve(EngineConfig.from_options(options), "cpu")
    settings = explain(ServerConfig(), resolution.config, resolution.reasons, options)
    return {setting.name: (setting.value, setting.reason) for setting in settings}


def test_every_option_has_a_value_and_a_reason() -> None:
    names = [name for group in ("server", *ENGINE_GROUPS) for name, _ in options_of(GROUPS[group])]
    found = explained()
    assert list(found) == names
    assert all(reason for _, reason in found.values())


@pytest.mark.parametrize(
    ("options", "name", "value", "reason"),
    [
        ({"page_size": 16}, "page_size", 16, "you set it"),
        ({"schedule": "mixed"}, "schedule", "mixed", "you set it"),
        ({}, "schedule", "mixed", "default"),
        ({}, "page_size", 32, "default on cpu"),
        ({}, "max_batch_tokens", 192, "--chunked-prefill-size + --max-running-requests"),
        ({"chunked_prefill_size": -1}, "chunked_prefill_size", 0, "you set it"),
        ({"chunked_prefill_size": -1}, "max_partial_prefills", 1, "prompts are not cut"),
        ({"chunked_prefill_size": 8}, "page_size", 8, "at most --chunked-prefill-size (8)"),
        ({"max_batch_tokens": 40}, "max_running_requests", 24, "leaves a page of --max-batch-tokens to prefill"),
        ({"enable_overlap": True}, "lookahead", 1, "--enable-overlap"),
        ({"pp_size": 2}, "itl_target", None, "off with --pp-size 2"),
        ({"pp_size": 2, "itl_target": "9ms"}, "sliced_chunk_size", None, "off with --pp-size 2"),
        ({"pp_size": 2, "itl_target": "9ms", "sliced_chunk_size": 512}, "sliced_chunk_size", 512, "you set it"),
        ({}, "max_prefill_tokens", None, "default: no limit"),
        ({}, "schedule_conservativeness", 1.0, "default: 1"),
        ({}, "host", "127.0.0.1", "default"),
    ],
)
def test_why(options: dict[str, Any], name: str, value: Any, reason: str) -> None:
    assert explained(**options)[name] == (value, reason)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["explain", "--device", "cpu", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "some/model", "--max-num-seqs", "3", "--disable-radix-cache", "--port", "0").splitlines()
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines if line.startswith("  ")}
    assert [line for line in lines if line and not line.startswith(" ")] == [
        "server:",
        "model:",
        "cache:",
        "scheduler:",
        "speculative:",
        "offload:",
        "diffusion:",
        "parallel:",
        "kv_events:",
        "lora:",
        "trace:",
        "estimate:",
    ]
    assert rows["--model"] == ["some/model", "you set it"]
    assert rows["--port"] == ["0", "you set it"]
    assert rows["--max-running-requests"] == ["3", "you set it"]
    assert rows["--enable-prefix-caching"] == ["off", "you set it"]
    assert rows["--max-partial-prefills"] == ["3", "--max-running-requests"]
    assert rows["--max-total-tokens"] == ["(later)", "from free memory when the model is loaded"]
    assert rows["--dtype"] == ["auto", "auto: what the checkpoint says"]
    assert rows["--device"] == ["cpu", "you set it"]
    assert max(map(len, lines)) <= 110


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(said(capsys, "--json", "--enable-overlap"))
    assert content["depth"] == {"value": 2, "reason": "--enable-overlap", "group": "scheduler", "flag": "--depth"}
    assert content["enable_overlap"]["value"] is True
    assert content["max_prefill_tokens"]["value"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--page-size", "3"], "--page-size must be a power of two of at most 1024, got 3"),
        (["--page-size", "64", "--chunked-prefill-size", "32"], "--chunked-prefill-size must be at least one page"),
        (["--enable-overlap", "--depth", "1"], "--enable-overlap means at least --depth 2"),
        (["--max-batch-tokens", "8", "--max-running-requests", "8"], "got 8 with 8 running"),
        (["--device", "tpu"], "--device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
        (["--port", "70000"], "--port must be from 0 to 65535, got 70000"),
        (["--log-level", "loud"], "--log-level must be one of debug, info, warning, error, got 'loud'"),
    ],
)
def test_what_is_refused_is_refused_here_too(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """One line and a status: it can stand before `sluice serve` in a script."""
    try:
        status = cli.main(["explain", *arguments])
    except SystemExit as end:
        status = int(str(end.code))
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.startswith("sluice explain: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_no_model_is_loaded() -> None:
    program = (
        "import sys; from sluice.cli import main; main(['explain', 'no/such/model']);"
        "sys.exit('sluice.assembly.load' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0
