"""Which key of the environment goes to which server."""

from __future__ import annotations

import pytest

from sluice.cli.chat.keys import Keys, is_loopback, key_for
from sluice.config import ConfigError

OPENAI = Keys(None, None, "of OpenAI")


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("localhost", True),
        ("LocalHost.", True),
        ("a.localhost", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost.example", False),
        ("notlocalhost", False),
        ("127.0.0.1.example", False),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
    ],
)
def test_what_stays_on_this_machine(host: str, is_here: bool) -> None:
    assert is_loopback(host) is is_here


def test_openais_key_is_not_sent_in_the_open() -> None:
    """The key of an account at OpenAI went over plain HTTP to whatever --url named."""
    key, warning = key_for("10.0.0.1", OPENAI, is_tls=False)
    assert key is None
    assert warning is not None
    assert "OPENAI_API_KEY is not sent to 10.0.0.1" in warning
    assert "of OpenAI" not in warning
    assert key_for("example.org", OPENAI, is_tls=True) == ("of OpenAI", None)
    assert key_for("localhost", OPENAI, is_tls=False) == ("of OpenAI", None)


def test_a_key_that_is_meant_for_the_server_is_sent_there() -> None:
    keys = Keys(None, "ours", "of OpenAI")
    for host, is_tls in (("localhost", False), ("example.org", True)):
        assert key_for(host, keys, is_tls=is_tls) == ("ours", None)
    key, warning = key_for("example.org", keys, is_tls=False)
    assert key == "ours"
    assert warning == "the API key goes to example.org over plain HTTP: others may read it"
    assert key_for("example.org", keys._replace(given="given"), is_tls=False).key == "given"


def test_without_a_key() -> None:
    assert key_for("example.org", Keys(None, None, None), is_tls=False) == (None, None)


@pytest.mark.parametrize("key", ["ä", "a\nb"])
def test_a_key_that_is_no_header(key: str) -> None:
    with pytest.raises(ConfigError, match="printable ASCII"):
        key_for("localhost", Keys(key, None, None), is_tls=False)
