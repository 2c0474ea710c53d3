"""A checkpoint's chat template may be broken or hostile, and must not stop the server."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sluice.text import template_limits
from sluice.text.chat_template import ChatTemplate, ChatTemplateError

TALK = [{"role": "user", "content": "a\tb\nc"}]
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = "{% set x = namespace(s='ab') %}{% for i in range(99) %}{% set x.s = EXPRESSION %}{% endfor %}"
HUNGRY = {
    "empty loops": LOOP,
    "loops that write": LOOP.replace("{% endfor %}{% endfor %}", "x{% endfor %}{% endfor %}"),
    "filtered loops": "{% for a in range(99999) if range(99999)|list|length < 0 %}{% endfor %}",
    "a recursive loop": (
        "{% for a in [1] recursive %}{% set again = loop %}{% for b in range(99999) %}{{ again(range(99999)) }}"
        "{% endfor %}{% endfor %}"
    ),
    "a macro that calls itself": "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "a macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "a call block": (
        "{% macro f(n) %}{{ caller() }}{% if n %}{% for i in (1, 2) %}{% call f(n - 1) %}{% endcall %}{% endfor %}"
        "{% endif %}{% endmacro %}{% call f(60) %}{% endcall %}"
    ),
    "a repeated text": "{{ 'a' * 10 ** 12 }}",
    "a text repeated by a variable": "{% set n = 10 ** 12 %}{{ messages[0].content * n }}",
    "a repeated list": "{{ ([1] * 10 ** 11)|length }}",
    "doubling by +": DOUBLING.replace("EXPRESSION", "x.s + x.s"),
    "doubling by ~": DOUBLING.replace("EXPRESSION", "x.s ~ x.s"),
    "doubling by a list's +": DOUBLING.replace("'ab'", "[1]").replace("EXPRESSION", "x.s + x.s"),
    "doubling by a format": DOUBLING.replace("EXPRESSION", "'%s%s' % (x.s, x.s)"),
    "doubling by the filter format": DOUBLING.replace("EXPRESSION", "'%s%s'|format(x.s, x.s)"),
    "doubling by str.format": DOUBLING.replace("EXPRESSION", "'{0}{0}'.format(x.s)"),
    "doubling by str.format_map": DOUBLING.replace("EXPRESSION", "'{a}{a}'.format_map({'a': x.s})"),
    "doubling by replace": DOUBLING.replace("EXPRESSION", "x.s.replace('a', x.s)"),
    "doubling by the filter replace": DOUBLING.replace("EXPRESSION", "x.s|replace('b', x.s)"),
    "doubling by join": DOUBLING.replace("EXPRESSION", "x.s.join(['a', x.s, 'b'])"),
    "doubling by the filter join": DOUBLING.replace("EXPRESSION", "[x.s, x.s]|join(x.s)"),
    "doubling by a block": (
        "{% set x = namespace(s='ab') %}{% for i in range(99) %}{% set y %}{{ x.s }}{{ x.s }}{% endset %}"
        "{% set x.s = y %}{% endfor %}"
    ),
    "doubling by a macro": ("{% macro f(s) %}{{ s }}{{ s }}{% endmacro %}" + DOUBLING.replace("EXPRESSION", "f(x.s)")),
    "doubling by a filter block": (
        "{% set x = namespace(s='ab') %}{% for i in range(99) %}{% set y %}{% filter upper %}{{ x.s }}{{ x.s }}"
        "{% endfilter %}{% endset %}{% set x.s = y %}{% endfor %}"
    ),
    "a wide center": "{{ 'a'|center(10 ** 10) }}",
    "a wide ljust": "{{ 'a'.ljust(10 ** 10) }}",
    "a wide ljust, caught in a variable": "{% set f = 'a'.ljust %}{{ f(10 ** 10) }}",
    "wide tabs": "{{ messages[0].content.expandtabs(10 ** 10) }}",
    "a wide indent": "{{ messages[0].content|indent(10 ** 10) }}",
    "a wide indent by name": "{{ messages[0].content|indent(width=10 ** 10, first=true) }}",
    "a wide format": "{{ '%9999999999d' % 1 }}",
    "a wide format by a value": "{{ '%*d' % (10 ** 10, 1) }}",
    "a wide filter": "{{ '%9999999999d'|format(1) }}",
    "a wide str.format": "{{ '{:>9999999999}'.format(1) }}",
    "a wide str.format by a value": "{{ '{:>{}}'.format(1, 10 ** 10) }}",
    "wide JSON": "{{ messages|tojson(indent=10 ** 9) }}",
    "many batches": "{{ ([1]|batch(10 ** 9, 'x'))|list|length }}",
    "many slices": "{{ ([1]|slice(10 ** 9))|list|length }}",
    "long line breaks": "{% set s = 'ab ' * 99999 %}{{ s|wordwrap(1, true, s) }}",
    "translated": "{% set s = 'a' * 99999 %}{{ s.translate({97: s}) }}",
    "a sum of lists": "{{ (range(99999)|batch(1)|list)|sum(start=[])|length }}",
    "a large power": "{{ 10 ** (10 ** 10) }}",
    "a tower of products": (
        "{% set x = namespace(n=9) %}{% for i in range(99) %}{% set x.n = x.n * x.n %}{% endfor %}{{ x.n > 0 }}"
    ),
    "a list of lists": "{% set x = namespace(s=[1]) %}{% for i in range(99) %}{% set x.s = x.s * 2 %}{% endfor %}",
}


@pytest.fixture
def _little_memory() -> Iterator[None]:
    """Limit the memory of the test, so that a template that gets through does not exhaust the machine's."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("case", HUNGRY)
def test_a_hungry_template_is_stopped(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the limits, before memory runs out."""
    monkeypatch.setattr(template_limits, "SECONDS", 0.05)  # two seconds, fifty times over
    template = ChatTemplate(HUNGRY[case], {})
    with pytest.raises(ChatTemplateError) as caught:
        template.render(TALK)
    assert "MemoryError" not in str(caught.value)
    assert any(words in str(caught.value) for words in ("it ", "recursion", "Range too big")), str(caught.value)


def test_constants_are_not_folded() -> None:
    """A folded constant is computed when a server starts, without a budget."""
    ChatTemplate("{% if false %}{{ 'a' * 10 ** 12 }}{{ 'a'|center(10 ** 10) }}{% endif %}ok", {})


def test_a_rendering_has_its_own_budget() -> None:
    """A rendering must not use up the budget of the next, even if it was stopped."""
    template = ChatTemplate("{% for i in range(3) %}{{ 'a' * 1000000 }}{% endfor %}", {})
    assert {len(template.render(TALK)) for _ in range(5)} == {3_000_000}
    hungry = ChatTemplate(HUNGRY["doubling by ~"], {})
    for _ in range(2):
        with pytest.raises(ChatTemplateError):
            hungry.render(TALK)
        assert len(template.render(TALK)) == 3_000_000


def test_a_long_conversation_may_become_a_long_prompt() -> None:
    talk = [{"role": "user", "content": "word " * 100}] * 2000
    template = ChatTemplate("{% for m in messages %}{{ m.role ~ ': ' + m.content|trim ~ '\n' }}{% endfor %}", {})
    assert len(template.render(talk)) == 2000 * (len("user: ") + 499 + 1)


ORDINARY: dict[str, tuple[str, str]] = {
    "arithmetic": ("{{ 2 ** 10 + 3 * 4 - 7 % 4 }}", "1033"),
    "texts": ("{{ 'ab' * 3 ~ 2 + '!' }}", "ababab2!"),
    "formats": (
        "{{ '%s-%03d' % ('a', 7) }}{{ '%5.2f'|format(1.5) }}{{ '{:>4}{}'.format('x', 10000000) }}",
        "a-007 1.50   x10000000",
    ),
    "methods": (
        "{{ ' x '.strip().upper().center(5, '.') }}{{ ','.join(['a', 'b']) }}{{ 'aXa'.replace('X', '--') }}",
        "..X..a,ba--a",
    ),
    "filters": ("{{ 'a b'|replace(' ', '_')|indent(2, true) }}{{ [1, 2]|join('+') }}{{ [1, 2]|sum }}", "  a_b1+23"),
    "batches": ("{{ [1, 2, 3]|batch(2, 0)|list }}", "[[1, 2], [3, 0]]"),
    "named arguments": ("{{ 'a'|center(width=3) }}|{{ [{'a': 1}, {'a': 2}]|join(d='/', attribute='a') }}", " a |1/2"),
    "JSON": ("{{ {'a': [1, 'ü']}|tojson }}{{ 1700000000|tojson }}", '{"a": [1, "ü"]}1700000000'),
    "loops": ("{% for m in [1, 2] %}{{ loop.index }}{{ m }}{% else %}none{% endfor %}", "1122"),
    "an empty loop": ("{% for m in [] %}x{% else %}none{% endfor %}", "none"),
    "loop controls": (
        "{% for m in range(9) %}{% if m == 1 %}{% continue %}{% elif m == 3 %}{% break %}{% endif %}{{ m }}"
        "{% endfor %}",
        "02",
    ),
    "macros": ("{% macro f(a, b=2) %}{{ a + b }}{% endmacro %}{{ f(1) }}{{ f(1, b=5) }}", "36"),
    "call blocks": ("{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}in{% endcall %}", "<in>"),
    "set blocks": ("{% set x %}a{{ 1 }}{% endset %}{{ x ~ x }}", "a1a1"),
    "a generation block": ("{% generation %}kept{% endgeneration %}", "kept"),
    "undefined": ("{{ nothing ~ 'x' }}{{ nothing|default('d') }}", "xd"),
    "large numbers": (
        "{{ 1700000000000 + 1 }}{{ [1700000000000]|select('gt', 5)|list }}",
        "1700000000001[1700000000000]",
    ),
}


@pytest.mark.parametrize("case", ORDINARY)
def test_ordinary_templates_render(case: str) -> None:
    source, expected = ORDINARY[case]
    assert ChatTemplate(source, {}).render(TALK) == expected


ESCAPES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ ''|attr('__class__') }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ self._TemplateReference__context.environment }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% do messages.append(1) %}{{ messages.append(1) }}",
    "{{ lipsum(n=10 ** 6) }}",
)


@pytest.mark.parametrize("source", ESCAPES)
def test_no_way_out_of_the_sandbox(source: str) -> None:
    """Private attributes are refused or missing."""
    with suppress(ChatTemplateError):
        assert ChatTemplate(source, {}).render(TALK) == ""
