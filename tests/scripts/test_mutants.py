"""The mutation script plants what it says, and what is written about its mutants still fits the code."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import mutants
from mutants import FILES, PACKAGE, Mutant, mutants_of
from mutants_by_hand import BY_HAND
from slow import slow

TESTS = Path(__file__).parent.parent
all_mutants: Callable[[], list[Mutant]] = cache(mutants.all_mutants)


@pytest.mark.parametrize("every", [30, slow(1)])
def test_every_mutant_is_a_different_program_that_compiles(every: int) -> None:
    """A mutant that does not compile dies without having tested anything."""
    found = all_mutants()
    by_rule = len(found) - len(BY_HAND)
    for mutant in found[:by_rule:every] + found[by_rule:]:
        source = (PACKAGE / mutant.file).read_bytes()
        mutated = mutant.apply(source)
        assert mutated != source, mutant.key
        compile(mutated, mutant.key, "exec")


def test_every_file_of_the_core_is_mutated_by_rule() -> None:
    for file in FILES:
        assert any(True for _ in mutants_of(file)), f"no mutant in {file}"


def test_mutants_have_names_of_their_own() -> None:
    """Verdicts and explanations are kept by name: two mutants of one name would share a verdict."""
    keys = [mutant.key for mutant in all_mutants()]
    assert len(keys) == len(set(keys))


def test_every_patch_by_hand_plants_another_bug() -> None:
    assert len({(file, old, new) for file, old, new, _ in BY_HAND}) == len(BY_HAND)
    assert all(why for *_, why in BY_HAND)


def test_every_explained_survivor_exists() -> None:
    """An explanation outlives the line it explains and would then excuse the line that replaces it."""
    keys = {mutant.key for mutant in all_mutants()}
    for entry in tomllib.loads((TESTS / "mutation_survivors.toml").read_text()).get("survivor", []):
        key = f"{entry['file']}:{entry['function']}: {entry['mutation']}"
        assert key in keys, f"no such mutant any more: {key}"


def test_the_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule once, on a function small enough to list its mutants by heart."""
    (tmp_path / "sample.py").write_text(
        "def sample(self, a: int = 1) -> int:\n"
        '    """Not this."""\n'
        "    assert a < 3\n"
        "    if a < 2 or self.b:\n"
        "        return 0\n"
        "    self.b = min(a, a + a)\n"
        "    self.b -= a\n"
        "    return a if a is None else len([x for x in a if not x])\n"
    )
    monkeypatch.setattr(mutants, "PACKAGE", tmp_path)
    assert {(mutant.before, mutant.after) for mutant in mutants_of("sample.py")} == {
        ("def sample(self, a: int = 1) -> int:", "def sample(self, a: int = 2) -> int:"),
        ("def sample(self, a: int = 1) -> int:", "def sample(self, a: int = 0) -> int:"),
        ("if a < 2 or self.b: return 0", "pass"),
        ("if a < 2 or self.b:", "if (not (a < 2 or self.b)):"),
        ("if a < 2 or self.b:", "if (a < 2):"),
        ("if a < 2 or self.b:", "if (self.b):"),
        ("if a < 2 or self.b:", "if (a <= 2) or self.b:"),
        ("if a < 2 or self.b:", "if a < 3 or self.b:"),
        ("if a < 2 or self.b:", "if a < 1 or self.b:"),
        ("return 0", "return 1"),
        ("return 0", "return (-1)"),
        ("self.b = min(a, a + a)", "pass"),
        ("self.b = min(a, a + a)", "self.b = max(a, a + a)"),
        ("self.b = min(a, a + a)", "self.b = min(a, (a - a))"),
        ("self.b -= a", "pass"),
        ("self.b -= a", "self.b += a"),
        (
            "return a if a is None else len([x for x in a if not x])",
            "return a if (a is not None) else len([x for x in a if not x])",
        ),
        (
            "return a if a is None else len([x for x in a if not x])",
            "return a if a is None else len([x for x in a if (x)])",
        ),
    }
