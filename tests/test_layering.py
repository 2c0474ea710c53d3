"""The house keeps its shape: which way imports point, and who may read time and the environment.

Every rule is read off the syntax trees, so an import inside a function or under `TYPE_CHECKING` counts too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "sluice"
FILES = sorted(SRC.rglob("*.py"))
MODULES = {
    ".".join(file.relative_to(SRC.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for file in SRC.parent.rglob("*.py")
}
CORE = ("types", "config", "kv", "scheduler", "engine")
ARROWS = {
    unit: {unit, *imported.split()}
    for unit, imported in {
        "version": "",
        "types": "",
        "config": "types",
        "kernels": "version",
        "kv": "types",
        "scheduler": "types kv",
        "engine": "types kv scheduler",
        "text": "types",
        "parallel": "",
        "attention": "config kernels",
        "models": "version types text kernels parallel attention",
        "device": "config attention",
        "storage": "types kernels device",
        "runner": "types kernels kv engine parallel attention models device storage",
        "tracing": "types config scheduler engine",
        "assembly": "version types config kernels kv scheduler engine text parallel attention models device storage"
        " runner tracing",
        "process": "types config kv engine parallel assembly",
        "bench": "version types config engine text tracing assembly process",
        "routing": "config kv",
        "sim": "types config kv scheduler engine models tracing assembly bench routing",
        "http": "version types config engine text models assembly process",
        "fleet": "types config kv engine models assembly process routing http",
        "llm": "types config engine text assembly process",
        "cli": "version types config text models device storage tracing assembly bench sim http fleet llm",
        "testing": "types kv scheduler engine attention device runner",
        "__init__": "types config llm",
        "__main__": "cli",
    }.items()
}
"""Unit of the house -> units that it may import. Imports point to units above: there is no cycle."""
HTTP_ROOMS = ("base", "call", "apis", "observe", "edge")
"""The rooms of `http`. Imports point to rooms before; the modules beside the rooms import from all of them."""
READ_ONLY = ("Mapping", "Sequence", "Final", "frozenset")


def unit_of(file: Path) -> str:
    """The package below `sluice`, or the module's own name."""
    return file.relative_to(SRC).parts[0].removesuffix(".py")


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(file.read_text())))


@cache
def imports(file: Path) -> frozenset[str]:
    """Return the modules that a file imports."""
    found = set()
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: write imports out in full"
            assert node.module is not None
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = names & MODULES.keys()
            found |= submodules if submodules == names else submodules | {node.module}
    return frozenset(found)


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


def test_the_rooms_of_http_are_in_order() -> None:
    def room_of(names: Sequence[str]) -> int:
        return HTTP_ROOMS.index(names[0]) if names and names[0] in HTTP_ROOMS else len(HTTP_ROOMS)

    for file in (SRC / "http").rglob("*.py"):
        room = room_of(file.relative_to(SRC / "http").parts)
        for name in imports(file):
            if name.startswith("sluice.http."):
                assert room_of(name.split(".")[2:]) <= room, f"{file} may not import {name}"


def test_no_modules_import_each_other() -> None:
    """A circle of imports works only in the order in which it was first tried."""
    graph = {name: imports(file) & MODULES.keys() - {name} for name, file in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


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


def test_the_server_loads_no_torch() -> None:
    """The engine is another process: torch in the server's, too, made each start two seconds longer."""
    code = "import sys, sluice.http.serve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_finding_a_checkpoint_loads_no_torch() -> None:
    """Servers over the shadow model and clients look for checkpoints, too."""
    code = "import sys, sluice.models.hub; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_importing_the_scheduler_loads_no_library() -> None:
    """Simulator and tools import the scheduler alone, in a tenth of a second: torch would take them seconds."""

    def loaded(what: str) -> set[str]:
        code = f"import sys, {what}; print(*{{name.partition('.')[0] for name in sys.modules}})"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return {*run.stdout.split()}

    assert loaded("sluice.scheduler.scheduler") - loaded("os") - {*sys.stdlib_module_names} == {"sluice"}
