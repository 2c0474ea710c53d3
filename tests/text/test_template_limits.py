"""A checkpoint's chat template may be broken or hostile, and must not stop the server."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError

import processes
from slow import slow
from sluice.text.chat_template import ChatTemplate, ChatTemplateError, ChatTemplateUnavailable
from sluice.text.render_process import Renderer

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
    "wide tabs": "{{ messages[0].content.expandtabs(10 ** 9) }}",
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
    "a wide ljust of bytes": "{{ ('a' * 1000).encode().ljust(10 ** 9) }}",
    "many bytes of a number": "{{ (1).to_bytes(1500000000)|length }}",
    "a list of lists": "{% set x = namespace(s=[1]) %}{% for i in range(99) %}{% set x.s = x.s * 2 %}{% endfor %}",
}

KINDS = (
    *("empty loops", "loops that write", "a macro that calls itself", "a repeated text", "doubling by +"),
    *("a wide ljust", "wide JSON", "a large power"),
)
"""One of each: time, what is written, recursion, memory at once, memory over time, in filters, and in C."""
LITTLE: dict[str, Any] = {"seconds": 0.05, "memory_mb": 64}
"""Limits for templates that exceed any: a fortieth of the time and a sixteenth of the memory of a server's."""


def stopped(source: str, talk: list[dict[str, str]] = TALK, **limits: float) -> str:
    """The error of a template that must be stopped; a process of its own must not outlive it."""
    with closing(ChatTemplate(source, {}, **LITTLE | limits)) as template, pytest.raises(ChatTemplateError) as caught:
        template.render(talk)
    return str(caught.value)


@pytest.mark.parametrize("case", [*KINDS, *(slow(case) for case in HUNGRY if case not in KINDS)])
def test_a_hungry_template_is_stopped(case: str) -> None:
    """By the limits of its process, in which it may do what it likes."""
    said = stopped(HUNGRY[case])
    assert "MemoryError" not in said
    assert any(words in said for words in ("it runs", "it takes", "it makes", "recursion", "Range too big")), said


TOO_LONG = "{% for i in range(40) %}{{ 'a' * 500000 }}{% endfor %}"


@pytest.mark.parametrize("source", [LOOP, "{% set x = 10 ** (10 ** 9) %}", "{% set x = 'a' * 10 ** 12 %}", TOO_LONG])
def test_the_next_rendering_is_not_harmed(source: str) -> None:
    """A process that was stopped is followed by another."""
    with closing(ChatTemplate("{% if messages[1] %}" + source + "{% endif %}ok", {}, **LITTLE)) as template:
        for _ in range(2):
            with pytest.raises(ChatTemplateError, match=r"was stopped: it (runs|takes|makes)"):
                template.render([*TALK, *TALK])
            assert template.render(TALK) == "ok"


def test_each_limit_says_what_it_is() -> None:
    assert stopped("{% set x = 10 ** (10 ** 9) %}") == (
        "the chat template was stopped: it runs for more than 0.05 seconds"
    )
    assert stopped("{% set x = 'a' * 10 ** 12 %}") == (
        "the chat template was stopped: it takes more than 64 MiB of memory"
    )
    assert stopped(TOO_LONG, seconds=60) == ("the chat template was stopped: it makes more text than a chat can need")


UNDER_A_LIMIT = """
import resource
from sluice.text.chat_template import ChatTemplate

resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
template = ChatTemplate("{{ messages[0].content }}", {}, memory_mb=1 << 20)
print(template.render([{"role": "user", "content": "hello"}]))
template.close()
"""


def test_a_template_renders_where_the_system_allows_less_memory_than_its_limit() -> None:
    """Under `ulimit -v` the process ended with a traceback, and the error blamed the template."""
    done = subprocess.run([sys.executable, "-c", UNDER_A_LIMIT], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("hello\n", "")


@pytest.mark.parametrize("depth", [10**3, 10**5])
@pytest.mark.parametrize("source", ["{{ OPENEDmessagesCLOSED }}", "OPENED1CLOSED", "{{ [OPENED1CLOSED] }}"])
def test_deep_nesting_is_an_error_of_the_template(source: str, depth: int) -> None:
    """Neither the end of the server nor an error of its own."""
    opened, closed = ("{% if 1 %}", "{% endif %}") if source.startswith("OPENED") else ("(", ")")
    source = source.replace("OPENED", opened * depth).replace("CLOSED", closed * depth)
    with closing(ChatTemplate(source, {}, **LITTLE)) as template, pytest.raises(ChatTemplateError):
        template.start()


@pytest.mark.parametrize("source", ["{% if %}", "{{ 1|no_such_filter }}", "{{ " + "9" * 5000 + " }}", "{% for" * 99])
def test_a_template_that_cannot_be_compiled_is_known_at_the_start(source: str) -> None:
    with closing(ChatTemplate(source, {})) as template:
        for _ in range(2):
            with pytest.raises(ChatTemplateError, match="cannot be read"):
                template.start()


def test_constants_are_not_folded() -> None:
    """Or only those that are cheap: others would stop the template for what it may never need."""
    source = "{% if false %}{{ 'a' * 10 ** 12 }}{{ 'a'|center(10 ** 10) }}{% endif %}ok"
    with closing(ChatTemplate(source, {}, **LITTLE)) as template:
        template.start()
        assert template.render(TALK) == "ok"


def test_to_compile_a_template_is_limited_too() -> None:
    template = ChatTemplate("{{ 10 ** (10 ** 9) }}", {}, **LITTLE)
    with closing(template), pytest.raises(ChatTemplateError, match=r"it runs for more than 0\.05 seconds"):
        template.start()


def test_a_rendering_has_its_own_budget() -> None:
    """Renderings must not use up the time of those that follow."""
    talk = [{"role": "user", "content": "word " * 100}] * 2000
    with closing(ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {}, seconds=0.25)) as template:
        spent = time.monotonic() + 1
        while time.monotonic() < spent:
            assert len(template.render(talk)) == 10**6


def test_a_long_conversation_may_become_a_long_prompt() -> None:
    talk = [{"role": "user", "content": "word " * 100}] * 2000
    source = "{% for m in messages %}{{ m.role ~ ': ' + m.content|trim ~ '\n' }}{% endfor %}"
    with closing(ChatTemplate(source, {})) as template:
        assert len(template.render(talk)) == 2000 * (len("user: ") + 499 + 1)
        assert len(template.render([{"role": "user", "content": "é😀" * 4_000_000}])) == 8_000_007


def test_a_process_that_was_killed_is_replaced() -> None:
    with closing(ChatTemplate("{{ messages[0].content }}", {})) as template:
        for _ in range(2):
            assert template.render(TALK) == "a\tb\nc"
            child = process_of(template)
            os.kill(child, signal.SIGKILL)
            assert processes.ends(child, 10)


def test_a_process_that_stands_still_is_replaced() -> None:
    """Its processor time does not pass."""
    with closing(ChatTemplate("{{ messages[0].content }}", {}, timeout=1)) as template:
        template.start()
        os.kill(process_of(template), signal.SIGSTOP)
        with pytest.raises(ChatTemplateUnavailable, match="did not answer in time"):
            template.render([{"role": "user", "content": "x" * 10**6}])
        assert template.render(TALK) == "a\tb\nc"


def test_a_process_ends_with_its_template() -> None:
    """Closed or forgotten, while it is idle or at work."""
    for forget in (False, True):
        template = ChatTemplate("{% if messages[1] %}" + LOOP + "{% endif %}ok", {}, seconds=60)
        template.start()
        child = process_of(template)
        if forget:
            del template
            gc.collect()
        else:
            renderings = [template.submit([*TALK, *TALK]), template.submit(TALK)]
            template.close()
            for rendering in renderings:
                with pytest.raises(ChatTemplateUnavailable):
                    rendering.result(10)
            with pytest.raises(ChatTemplateUnavailable, match="closed"):
                template.submit(TALK)
        assert processes.ends(child, 10)


def test_a_process_ends_with_the_server() -> None:
    """Even if the server cannot end it: its input ends."""
    code = (
        "import os, signal; from sluice.text.chat_template import ChatTemplate; template = ChatTemplate('', {});"
        "template.start(); print(template._process._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    server = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    assert server.returncode == -signal.SIGKILL
    assert processes.ends(int(server.stdout), 10)


def test_a_process_inherits_no_files() -> None:
    with open(__file__, "rb") as file, closing(ChatTemplate("", {})) as template:
        os.set_inheritable(file.fileno(), True)
        template.start()
        assert {path.name for path in Path(f"/proc/{process_of(template)}/fd").iterdir()} == {"0", "1", "2"}


def process_of(template: ChatTemplate) -> int:
    assert template._process is not None
    return template._process._process.pid


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
    assert Renderer(source, {}).render(TALK) == expected


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
    with suppress(TemplateError, TypeError):
        assert Renderer(source, {}).render(TALK) == ""
