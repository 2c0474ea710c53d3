"""`sluice quantize`. The command line imports this for its flags, so it imports the rest late."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sluice.config import GROUPS, ConfigError, options_of
from sluice.config.arguments import help_of

NAMES = ("int8", "int4")
"""Names of the schemes: values of `--quantization` that quantise."""
MODEL_OPTIONS = ("revision", "download_dir")


def add_quantize_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `sluice quantize`, without the model itself."""
    parser.add_argument(
        "--quantization",
        "-q",
        choices=NAMES,
        help="the scheme (default: with --report every scheme)",
    )
    parser.add_argument("--output", "-o", metavar="FOLDER", help="write the quantised checkpoint to a new folder")
    parser.add_argument("--report", action="store_true", help="print the error of every weight")
    parser.add_argument(
        "--text",
        metavar="FILE",
        help="with --report: also what the model makes of this text, in bfloat16 and quantised",
    )
    parser.add_argument("--json", action="store_true", dest="as_json", help="with --report: print one JSON object")
    options = dict(options_of(GROUPS["model"]))
    for name in MODEL_OPTIONS:
        option = options[name]
        parser.add_argument(f"--{name.replace('_', '-')}", metavar=option.metavar, help=help_of(option, None))


def run_quantize(given: dict[str, Any]) -> int:
    """Write a quantised checkpoint, or report what quantisation costs, or both. Return the exit status.

    Args:
        given: the flags that were given, by name.

    Raises:
        ConfigError: a wrong command line.
        CheckpointError: the model cannot be found or quantised.
        OSError: a file cannot be read or written.
    """
    model, text = _checked(given)
    from sluice.cli.quantize.report import make_report, table, windows_of_text
    from sluice.cli.quantize.schemes import SCHEMES
    from sluice.cli.quantize.source import PlainCheckpoint
    from sluice.cli.quantize.write import write_quantized
    from sluice.models.hub import resolve_checkpoint

    cache = Path(given["download_dir"]) if "download_dir" in given else None
    folder = resolve_checkpoint(model, revision=given.get("revision"), cache=cache)
    source = PlainCheckpoint(folder)
    if text is not None:
        windows_of_text(source, text)  # a text that cannot be read is refused before anything is written
    if "output" in given:
        output = Path(given["output"])
        with _exit_on_sigterm():
            size = write_quantized(source, output, SCHEMES[given["quantization"]], progress=True)
        print(f"{output}: weights of {size / 2**20:.1f} MiB", file=sys.stderr)
    if "report" in given:
        asked = [given["quantization"]] if "quantization" in given else list(NAMES)
        report = make_report(source, asked, text, progress=True)
        print(json.dumps(report.as_json(), indent=2) if "as_json" in given else table(report))
    return 0


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise SystemExit, so that what is half written is removed."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _checked(given: dict[str, Any]) -> tuple[str, str | None]:
    """Return the model's name and the text to read.

    Raises:
        ConfigError: flags that contradict each other, or a text that cannot be read.
    """
    if "model" in given and "model_path" in given:
        raise ConfigError(f"two models are given: {given['model']} and --model {given['model_path']}")
    if "output" not in given and "report" not in given:
        raise ConfigError("give --output FOLDER to write a quantised checkpoint, or --report")
    if "output" in given and "quantization" not in given:
        raise ConfigError(f"--output needs --quantization, one of {', '.join(NAMES)}")
    for name, shown in (("text", "--text"), ("as_json", "--json")):
        if name in given and "report" not in given:
            raise ConfigError(f"{shown} needs --report")
    model = str(given.get("model", given.get("model_path", "")))
    text = None
    if "text" in given:
        try:
            text = Path(given["text"]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--text {given['text']} cannot be read: {error}") from None
    if not model:
        raise ConfigError("name a MODEL in safetensors: the default one is a GGUF file of four bits")
    return model, text
