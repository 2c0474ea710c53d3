"""The house keeps its shape: which way imports point, and who may read time and the environment.

Every rule is read off the syntax trees, so an import inside a function or under `TYPE_CHECKING` counts too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "sluice"
FILES = sorted(SRC.rglob("*.py"))
CORE = ("types", "config", "kv", "scheduler", "engine")
ARROWS = {unit: {*CORE[: index + 1]} for index, unit in enumerate(CORE)} | {
    "native": {"native"},
    "attention": {"config", "native", "attention"},
    "triton": {"triton"},
    "models": {"types", "native", "triton", "attention", "models"},
    "faults": {"types"},
    "device": {"config", "attention", "device"},
    "tiers": {"types", "device", "tiers"},
    "runner": {
        "types",
        "footprint",
        "config",
        "kv",
        "faults",
        "triton",
        "attention",
        "native",
        "models",
        "device",
        "tiers",
        "runner",
    },
    "limits": {"types"},
    "footprint": set(),
    "assembly": {
        "types",
        "footprint",
        "config",
        "kv",
        "scheduler",
        "engine",
        "tracing",
        "limits",
        "faults",
        "native",
        "attention",
        "models",
        "device",
        "tiers",
        "runner",
        "assembly",
    },
    "testing": {"types", "engine", "device", "runner", "testing"},
    "bench": {"types", "config", "engine", "limits", "assembly", "text", "process", "bench"},
    "tracing": {"types", "config", "scheduler", "engine", "tracing"},
    "text": {"types", "text"},
    "process": {"types", "footprint", "config", "engine", "limits", "faults", "assembly", "process"},
    "http": {
        "types",
        "footprint",
        "config",
        "engine",
        "limits",
        "faults",
        "assembly",
        "text",
        "process",
        "http",
    },
}
READ_ONLY = ("Mapping", "Sequence", "Final", "frozenset")


def unit_of(file: Path) -> str:
    """The package below `sluice`, or the module's own name."""
    return file.relative_to(SRC).parts[0].removesuffix(".py")


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: write imports out in full"
            assert node.module is not None
            names = [f"sluice.{alias.name}" for alias in node.names]
            yield from names if node.module == "sluice" else [node.module]


def core_files() -> list[Path]:
    return [file for file in FILES if unit_of(file) in CORE]


@pytest.mark.parametrize("unit", ARROWS)
def test_imports_point_downward(unit: str) -> None:
    files = [file for file in FILES if unit_of(file) == unit]
    assert files, f"nothing is called {unit} any more: bring ARROWS up to date"
    for file in files:
        ours = {name.split(".")[1] for name in imports(file) if name.startswith("sluice.")}
        assert ours <= ARROWS[unit], f"{file} may not import {ours - ARROWS[unit]}"


def test_the_core_imports_the_standard_library_only() -> None:
    for file in core_files():
        roots = {name.split(".")[0] for name in imports(file)}
        assert roots <= sys.stdlib_module_names | {"sluice"}, f"{file}: {roots - sys.stdlib_module_names}"


def test_only_the_clock_reads_time() -> None:
    """A scheduler that asks for the time cannot be replayed or simulated."""
    for file in core_files():
        if file != SRC / "engine" / "clock.py":
            assert {"time", "datetime"}.isdisjoint(imports(file)), f"{file} reads time"


def test_only_config_and_cli_read_the_environment() -> None:
    for file in FILES:
        if file in (SRC / "config" / "engine.py", SRC / "cli.py"):
            continue
        nodes = list(ast.walk(ast.parse(file.read_text())))
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        names |= {node.name for node in nodes if isinstance(node, ast.alias)}
        assert names.isdisjoint({"environ", "environb", "getenv"}), f"{file} reads the environment"


def test_the_core_has_no_mutable_module_state() -> None:
    """A constant table is wrapped in MappingProxyType, or annotated with a type that cannot be written through."""
    mutable = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    makers = {"list", "dict", "set", "deque", "defaultdict", "Counter", "bytearray", "array", "count"}
    for file in core_files():
        tree = ast.parse(file.read_text())
        assert not any(isinstance(node, ast.Global) for node in ast.walk(tree)), f"{file} rebinds a global"
        for node in tree.body:
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).startswith(READ_ONLY):
                continue
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            made = ast.unparse(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""
            is_mutable = isinstance(value, mutable) or made in makers
            assert not is_mutable, f"{file}:{node.lineno}: mutable"


def test_importing_the_scheduler_is_quick_and_loads_no_torch() -> None:
    """Simulator and tools import the scheduler alone: a torch import would cost them seconds.

    CPU time, not wall time: other tests run on the same cores.
    """
    code = (
        "import sys, time; start = time.process_time(); import sluice.scheduler, sluice.scheduler.scheduler;"
        "print(time.process_time() - start, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    seconds = []
    for _ in range(5):
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        elapsed, *loaded = run.stdout.split()
        assert loaded == ["False", "False"]
        seconds.append(float(elapsed))
        if seconds[-1] < 0.1:
            return
    pytest.fail(f"best of five imports took {min(seconds):.3f} s, 0.1 s is the limit")
