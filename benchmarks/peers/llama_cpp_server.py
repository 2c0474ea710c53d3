"""Runs llama.cpp's server, compiled from the sources in the `llama-cpp-python` package."""

from __future__ import annotations

import shutil
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.peers.environment import HOME, Environment, SetupError, run
from benchmarks.peers.peer import Command, Settings

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_OPENSSL=OFF",
    # The build would else download a web page.
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)
TARGETS = ("llama-server", "llama-quantize")
DEFAULT_BUDGET = 2048
"""llama.cpp's own default of `--batch-size`."""


class LlamaCpp:
    """llama.cpp has no package of its own that holds the server."""

    name = "llama.cpp"
    packages: Sequence[str] = (PACKAGE,)
    weights: Sequence[str] = ("bf16", "q8_0", "q4_0", "q4_k_m")

    def __init__(self) -> None:
        self.folder = HOME / "llama.cpp"
        self.converter = Environment("convert")

    @property
    def source(self) -> Path:
        return self.folder / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp"

    @property
    def programs(self) -> Path:
        return self.folder / "build" / "bin"

    def set_up(self) -> None:
        self.converter.set_up()
        if all((self.programs / target).is_file() for target in TARGETS):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        archive = self.folder / f"llama_cpp_python-{VERSION}.tar.gz"
        if not archive.is_file():
            download = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
            run([*download, "-d", str(self.folder), f"{PACKAGE}=={VERSION}"])
        if not self.source.is_dir():
            with tarfile.open(archive) as opened:
                opened.extractall(self.folder, filter="data")
        if shutil.which("cmake") is None:
            raise SetupError("llama.cpp is compiled with cmake and a C++ compiler; cmake is not on the PATH")
        build = self.folder / "build"
        run(["cmake", "-S", str(self.source), "-B", str(build), *OPTIONS])
        run(["cmake", "--build", str(build), "--target", *TARGETS, "-j", "1"])

    def versions(self) -> dict[str, str]:
        return {PACKAGE: VERSION}

    def prepare(self, settings: Settings) -> None:
        target = self._model(settings)
        if target.is_file():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        if settings.weights == "bf16":
            script = Path(__file__).with_name("llama_cpp_convert.py")
            command = [str(self.converter.python), str(script), str(self.source), str(settings.checkpoint)]
            run([*command, "--outfile", str(part), "--outtype", "bf16"])
        else:
            plain = replace(settings, weights="bf16")
            self.prepare(plain)
            quantize = [str(self.programs / "llama-quantize"), str(self._model(plain)), str(part)]
            run([*quantize, settings.weights.upper(), str(settings.threads)])
        part.replace(target)

    def serve(self, settings: Settings, port: int) -> Command:
        batch = settings.budget or DEFAULT_BUDGET
        arguments = [
            *(str(self.programs / "llama-server"), "--model", str(self._model(settings))),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--threads", str(settings.threads), "--threads-batch", str(settings.threads)),
            *("--parallel", str(settings.max_running), "--ctx-size", str(settings.kv_tokens), "--kv-unified"),
            *("--batch-size", str(batch), "--ubatch-size", str(min(batch, 512))),
            # No copies of finished requests' KV: no prompt of a workload repeats.
            *("--cache-ram", "0"),
        ]
        return Command([*arguments, *settings.more])

    def _model(self, settings: Settings) -> Path:
        return HOME / "models" / f"{settings.checkpoint.resolve().name}-{settings.weights}.gguf"
