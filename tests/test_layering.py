"""The house keeps its shape: which way imports point, and who may read time and the environment.

Every rule is read off the syntax trees, so an import inside a function or under `TYPE_CHECKING` counts too.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "sluice"
FILES = sorted(SRC.rglob("*.py"))
CORE = ("types", "config", "kv", "scheduler", "engine")
ARROWS = {
    unit: {unit, *imported.split()}
    for unit, imported in {
        "version": "",
        "types": "",
        "config": "types",
        "kv": "types",
        "scheduler": "types kv",
        "engine": "types kv scheduler",
        "native": "version",
        "triton": "",
        "attention": "config native",
        "parallel": "",
        "models": "version attention native triton parallel",
        "faults": "types",
        "limits": "types",
        "footprint": "",
        "vectors": "",
        "device": "config attention",
        "text": "types",
        "grammar": "types scheduler engine",
        "tiers": "types device native",
        "runner": "types kv faults footprint grammar attention models native triton device tiers parallel",
        "testing": "types scheduler engine attention device runner parallel",
        "tracing": "types config scheduler engine",
        "assembly": "version types config faults limits footprint scheduler engine native attention models device tiers"
        " text grammar runner tracing parallel kv",
        "constraints": "types text",
        "chat": "constraints",
        "process": "types config faults limits footprint kv engine assembly parallel",
        "bench": "version types config limits engine tracing assembly text process",
        "catalog": "config models text device",
        "routing": "config kv",
        "sim": "types config kv scheduler engine tracing bench assembly routing catalog",
        "http": "version types config faults limits footprint engine assembly text constraints chat process vectors"
        " catalog",
        "fleet": "types config kv engine assembly models text process routing http",
        "outputs": "types",
        "library": "types config limits engine text constraints outputs vectors",
        "llm": "types engine assembly text outputs library",
        "quantize": "types config models text llm",
        "async_llm": "types config process text outputs vectors library",
        "terminal": "types config llm outputs",
        "cli": "version types config tiers tracing assembly bench catalog sim http fleet llm quantize terminal",
        "__init__": "types config llm async_llm",
        "__main__": "cli",
    }.items()
}
"""Unit of the house -> units that it may import. Imports point to units above: there is no cycle."""
READ_ONLY = ("Mapping", "Sequence", "Final", "frozenset")


def unit_of(file: Path) -> str:
    """The package below `sluice`, or the module's own name."""
    return file.relative_to(SRC).parts[0].removesuffix(".py")


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(file.read_text())))


def imports(file: Path) -> Iterator[str]:
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: write imports out in full"
            assert node.module is not None
            names = [f"sluice.{alias.name}" for alias in node.names]
            yield from names if node.module == "sluice" else [node.module]


def core_files() -> list[Path]:
    return [file for file in FILES if unit_of(file) in CORE]


def test_every_unit_has_its_place() -> None:
    """A unit that is not listed may import anything; one that imports what comes after it makes a cycle possible."""
    assert {unit_of(file) for file in FILES} == set(ARROWS)
    order = [*(unit for unit in ARROWS if not unit.startswith("__")), "__init__", "__main__"]
    for unit, imported in ARROWS.items():
        assert all(order.index(each) <= order.index(unit) for each in imported), f"{unit} imports what comes later"
    loose = {file.stem for file in SRC.glob("*.py")} - {"__init__", "__main__"}
    assert len(loose) <= 8, f"loose modules: {sorted(loose)}"


def test_imports_point_downward() -> None:
    for file in FILES:
        ours = {name.split(".")[1] for name in imports(file) if name.startswith("sluice.")}
        assert ours <= ARROWS[unit_of(file)], f"{file} may not import {ours - ARROWS[unit_of(file)]}"


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
        if file in (SRC / "config" / "engine.py", SRC / "cli" / "commands.py"):
            continue
        names = {node.attr for node in nodes_of(file) if isinstance(node, ast.Attribute)}
        names |= {node.name for node in nodes_of(file) if isinstance(node, ast.alias)}
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


def test_finding_a_checkpoint_loads_no_torch() -> None:
    """Only a GGUF file needs it. Servers over the shadow model and clients name the bundled model, too."""
    code = "import sys, sluice.models.hub; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_importing_the_scheduler_is_quick_and_loads_no_torch(tmp_path: Path) -> None:
    """Simulator and tools import the scheduler alone: a torch import would cost them seconds.

    CPU time, not wall time: other tests run on the same cores. The first run writes the bytecode, also where the
    environment forbids it, so that the others measure the import and not Python's compiler.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    code = (
        "import sys, time; start = time.process_time(); import sluice.scheduler, sluice.scheduler.scheduler;"
        "print(time.process_time() - start, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    seconds = []
    for _ in range(5):
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        elapsed, *loaded = run.stdout.split()
        assert loaded == ["False", "False"]
        seconds.append(float(elapsed))
        if seconds[-1] < 0.1:
            return
    pytest.fail(f"best of five imports took {min(seconds):.3f} s, 0.1 s is the limit")
