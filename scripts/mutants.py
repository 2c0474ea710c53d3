"""Small wrong edits of the core, made by rule over the syntax tree of every function.

A mutant replaces one stretch of a file's text; nothing else changes, so a survivor can be shown as the line before and
the line after. What is never mutated: asserts, raised errors, docstrings, f-strings, annotations and `__repr__`, since
no test should depend on them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from mutants_by_hand import BY_HAND

PACKAGE = Path(__file__).parent.parent / "src" / "sluice"
FILES = (
    "kv/pages.py",
    "kv/prefix_cache.py",
    "kv/prefix_cache_base.py",
    "kv/tier_pool.py",
    "kv/lower_tiers.py",
    "kv/digests.py",
    "kv/events.py",
    "kv/nodes.py",
    "kv/flights.py",
    "kv/stores.py",
    "kv/loads.py",
    "kv/tiers.py",
    "kv/ring.py",
    "kv/offload.py",
    "kv/manager.py",
    "kv/handover.py",
    "scheduler/request.py",
    "scheduler/prefix_match.py",
    "scheduler/queue.py",
    "scheduler/queue_limits.py",
    "scheduler/state.py",
    "scheduler/batch.py",
    "scheduler/preempt.py",
    "scheduler/reserve.py",
    "scheduler/reserved_pages.py",
    "scheduler/prefix_dedup.py",
    "scheduler/prefill.py",
    "scheduler/admission.py",
    "scheduler/offloading.py",
    "scheduler/passes.py",
    "scheduler/fair.py",
    "scheduler/rows.py",
    "scheduler/scheduler.py",
    "engine/trace.py",
    "engine/deadlines.py",
    "engine/heartbeat.py",
    "engine/engine.py",
    "tracing/recorder.py",
)

FLIPPED = MappingProxyType(
    {
        ast.Lt: ast.LtE,
        ast.LtE: ast.Lt,
        ast.Gt: ast.GtE,
        ast.GtE: ast.Gt,
        ast.Eq: ast.NotEq,
        ast.NotEq: ast.Eq,
        ast.Is: ast.IsNot,
        ast.IsNot: ast.Is,
        ast.In: ast.NotIn,
        ast.NotIn: ast.In,
    }
)
FLIP_NEGATES = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
SWAPPED_OPERATOR = MappingProxyType({ast.Add: ast.Sub, ast.Sub: ast.Add})
SWAPPED_CALL = MappingProxyType({"min": "max", "max": "min", "any": "all", "all": "any"})
NEVER = (ast.Assert, ast.Raise, ast.JoinedStr, ast.arg, ast.pattern)
EARLY_EXITS = (ast.Return, ast.Continue, ast.Break, ast.Raise)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One edit: the bytes from `start` to `end` of `file` become `replacement`."""

    file: str
    function: str
    line: int
    start: int
    end: int
    replacement: bytes
    before: str
    """The source line or lines touched, on one line."""
    after: str
    why: str = ""
    """Of a mutant written by hand: the bug it plants."""
    duplicate: int = field(default=0)
    """Counts mutants of one function that read the same."""

    @property
    def key(self) -> str:
        """Its name; it holds across edits elsewhere in the file."""
        duplicate = f" #{self.duplicate}" if self.duplicate else ""
        return f"{self.file}:{self.function}: {self.before} -> {self.after}{duplicate}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.replacement + source[self.end :]


def all_mutants() -> list[Mutant]:
    """Those made by rule, file by file, then those written by hand."""
    mutants = [mutant for file in FILES for mutant in mutants_of(file)]
    return number_duplicates(mutants + [by_hand(*patch) for patch in BY_HAND])


def mutants_of(file: str) -> Iterator[Mutant]:
    """Every mutant made by rule in one file of the package."""
    source = Source(file, (PACKAGE / file).read_bytes())
    for function, node in functions(source.tree):
        for target, text in edits_within(node):
            if source.holds(target):
                yield source.mutant(function, target, text)


def by_hand(file: str, old: str, new: str, why: str) -> Mutant:
    """A mutant from a patch; `old` must occur once in the file.

    Raises:
        ValueError: it does not, so the patch no longer fits the code.
    """
    text = (PACKAGE / file).read_bytes()
    if text.count(old.encode()) != 1:
        raise ValueError(f"mutants_by_hand.py: {old!r} occurs {text.count(old.encode())} times in {file}, not once")
    start = text.index(old.encode())
    line = text.count(b"\n", 0, start) + 1
    before, after = " ".join(old.split()), " ".join(new.split())
    end = start + len(old.encode())
    return Mutant(file, "by hand", line, start, end, new.encode(), before, after, why)


def number_duplicates(mutants: list[Mutant]) -> list[Mutant]:
    seen: dict[str, int] = {}
    numbered = []
    for mutant in mutants:
        count = seen[mutant.key] = seen.get(mutant.key, -1) + 1
        numbered.append(replace(mutant, duplicate=count))
    return numbered


class Source:
    """A file's text beside its tree, to turn node positions into byte offsets."""

    def __init__(self, file: str, text: bytes) -> None:
        self.file = file
        self.text = text
        self.tree = ast.parse(text)
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def holds(self, node: ast.expr | ast.stmt) -> bool:
        """False for an `elif`, which cannot be taken out alone."""
        return not self.text.startswith(b"elif", self.span(node)[0])

    def mutant(self, function: str, node: ast.expr | ast.stmt, replacement: str) -> Mutant:
        start, end = self.span(node)
        assert node.end_lineno is not None
        first, last = self.starts[node.lineno - 1], self.starts[node.end_lineno]
        before = self.text[first:last].decode()
        after = (self.text[first:start] + replacement.encode() + self.text[end:last]).decode()
        shown = " ".join(before.split()), " ".join(after.split())
        return Mutant(self.file, function, node.lineno, start, end, replacement.encode(), *shown)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef) and node.name != "__repr__":
            yield f"{prefix}{node.name}", node


def edits_within(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Every (node, its replacement's text) below a node, in source order."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, NEVER) or is_docstring(child) or is_annotation(node, child):
            continue
        if isinstance(child, ast.stmt):
            yield from ((child, text) for text in statement_edits(child))
        elif isinstance(child, ast.expr):
            yield from ((child, text) for text in expression_edits(child))
        yield from condition_edits(child)
        yield from edits_within(child)


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_annotation(parent: ast.AST, child: ast.AST) -> bool:
    return (isinstance(parent, ast.AnnAssign) and child is parent.annotation) or (
        isinstance(parent, ast.FunctionDef) and (child is parent.returns or child in parent.decorator_list)
    )


def statement_edits(node: ast.stmt) -> Iterator[str]:
    """Drop what acts by its effect, and guards that leave early; swap += and -=."""
    match node:
        case ast.Expr() | ast.AugAssign() | ast.Delete():
            yield "pass"
        case ast.Assign(targets=targets) if not all(isinstance(target, ast.Name) for target in targets):
            yield "pass"
        case ast.If(body=[only], orelse=[]) if isinstance(only, EARLY_EXITS):
            yield "pass"
    if isinstance(node, ast.AugAssign) and type(node.op) in SWAPPED_OPERATOR:
        yield ast.unparse(ast.AugAssign(node.target, SWAPPED_OPERATOR[type(node.op)](), node.value))


def expression_edits(node: ast.expr) -> Iterator[str]:
    """Flip, shift by one, swap, drop an operand."""
    match node:
        case ast.Compare(left, operators, comparators):
            for index, operator in enumerate(operators):
                flipped = [*operators[:index], FLIPPED[type(operator)](), *operators[index + 1 :]]
                yield f"({ast.unparse(ast.Compare(left, flipped, comparators))})"
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value)):
            yield str(value + 1)
            yield str(value - 1) if value else "(-1)"
        case ast.BinOp(left, operator, right) if type(operator) in SWAPPED_OPERATOR:
            yield f"({ast.unparse(ast.BinOp(left, SWAPPED_OPERATOR[type(operator)](), right))})"
        case ast.BoolOp(operator, values):
            for index in range(len(values)):
                rest = values[:index] + values[index + 1 :]
                yield f"({ast.unparse(rest[0] if len(rest) == 1 else ast.BoolOp(operator, rest))})"
        case ast.Call(func=ast.Name(id=name)) if name in SWAPPED_CALL:
            yield ast.unparse(ast.Call(ast.Name(SWAPPED_CALL[name]), node.args, node.keywords))


def condition_edits(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Negate the conditions of `if`, `while`, `a if b else c` and comprehensions, unless a flip does just that."""
    conditions: list[ast.expr] = []
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        conditions = [node.test]
    elif isinstance(node, ast.comprehension):
        conditions = node.ifs
    for condition in conditions:
        match condition:
            case ast.Compare(ops=[operator]) if isinstance(operator, FLIP_NEGATES):
                pass
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield condition, f"({ast.unparse(operand)})"
            case _:
                yield condition, f"(not ({ast.unparse(condition)}))"
