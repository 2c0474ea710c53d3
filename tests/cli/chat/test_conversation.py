"""What is sent, what is shown and what is kept of a conversation; and its commands."""

from __future__ import annotations

import io
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from scripted_chat import conversation
from sluice.cli.chat.answers import STOPPED, AnswerError, AnswerPart, AnswerUsage
from sluice.cli.chat.chat import COMMANDS, HELP, Chat, answer_once
from sluice.cli.chat.conversation import AnswerTimes, ChatHistory
from sluice.cli.chat.stopping import Stopper

ENDS = AnswerPart(usage=AnswerUsage(20, 8, 4), finish_reason="stop")


def shown(talk: ChatHistory) -> str:
    assert isinstance(talk.screen.out, io.StringIO)
    return talk.screen.out.getvalue()


def chat(talk: ChatHistory, *entries: str | type[BaseException]) -> None:
    """Enter messages; a class of exceptions stands for a key that raises it."""
    given: Iterator[Any] = iter([*entries, EOFError])

    def read() -> str:
        entry = next(given)
        if isinstance(entry, str):
            return entry
        raise entry

    Chat(talk, read).run()


def test_each_message_is_sent_with_all_before_it() -> None:
    talk, source = conversation([AnswerPart("Hi"), AnswerPart(" there"), ENDS], [AnswerPart("Blue"), ENDS])
    chat(talk, "/system Be brief.", "Hello", "", "Which colour?")
    system = {"role": "system", "content": "Be brief."}
    first = [system, {"role": "user", "content": "Hello"}]
    assert source.asked[0] == first
    answer = {"role": "assistant", "content": "Hi there"}
    assert source.asked[1] == [*first, answer, {"role": "user", "content": "Which colour?"}]
    assert "Hi there\n" in shown(talk)


def test_clearing_keeps_the_system_prompt() -> None:
    talk, source = conversation([AnswerPart("a"), ENDS], [AnswerPart("b"), ENDS], [AnswerPart("c"), ENDS])
    chat(talk, "/system Be brief.", "one", "/clear", "two", "/system -", "/clear", "three")
    assert [m["content"] for m in source.asked[1]] == ["Be brief.", "two"]
    assert [m["content"] for m in source.asked[2]] == ["three"]


def test_an_answer_that_breaks_off_stays_and_a_message_without_one_does_not() -> None:
    """A conversation with two messages of the user in a row is refused by many chat templates."""
    talk, source = conversation(
        [AnswerError("too long")], [AnswerPart("half"), AnswerError("lost")], [AnswerPart("b"), ENDS]
    )
    chat(talk, "one", "two", "three")
    assert [m["content"] for m in source.asked[2]] == ["two", "half", "three"]
    assert "error: too long" in shown(talk)
    assert "error: lost" in shown(talk)


def test_the_rate_counts_the_tokens_behind_the_first_burst() -> None:
    """The wait for the first tokens made long prompts look like slow models, and a first burst like fast ones."""
    times = iter([0.0, 2.0, 2.0002, 2.5, 3.5])
    talk, _ = conversation([AnswerPart("a"), AnswerPart("b"), AnswerPart("c"), AnswerPart(reasoning="d"), ENDS])
    talk.clock = lambda: next(times)
    talk.send("x", Stopper())
    assert str(talk.timings[0]) == "4 tokens, 1.3 tokens/s, first after 2.00 s, prompt 20 (8 cached)"
    assert "answers: 1 with 4 tokens, 1.3 tokens/s" in talk.stats()


def test_there_is_no_rate_of_what_came_at_once() -> None:
    at_once, alone = AnswerTimes(0.0), AnswerTimes(0.0)
    for moment in (1.0, 1.0004, 1.0008):
        at_once.came(moment)
    alone.came(1.0)
    assert at_once.timing(AnswerUsage(5, 0, 3)).rate is None
    assert alone.timing(AnswerUsage(5, 0, 1)).rate is None


def test_a_piece_may_hold_several_tokens() -> None:
    """Guesses that were right bring several tokens in one event, as the first one did."""
    pace = AnswerTimes(0.0)
    for moment in (1.0, 2.0, 3.0):
        pace.came(moment)
    assert pace.timing(AnswerUsage(5, 0, 9)).rate == 3.0


def test_stats_before_the_first_answer() -> None:
    talk, _ = conversation()
    chat(talk, "/stats")
    assert "no answer yet" in shown(talk)


def test_a_model_cannot_send_commands_to_the_terminal() -> None:
    """An answer that was shown rewrote the lines before it, or the title of the window."""
    talk, _ = conversation([AnswerPart("a\x1b[2Jb\tc\r\nd\x07\x9b1m"), ENDS])
    talk.send("x", Stopper())
    assert "a\ufffd[2Jb\tc\nd\ufffd\ufffd1m\n" in shown(talk)
    piped, _ = conversation([AnswerPart("a\x1bb"), ENDS], terminal=False)
    answer_once(piped, "x\n")
    assert shown(piped) == "a\x1bb\n", "a file gets what the model wrote"


def test_reasoning_is_shown_and_not_sent_back() -> None:
    talk, source = conversation([AnswerPart(reasoning="Hm."), AnswerPart("Yes"), ENDS], [AnswerPart("b"), ENDS])
    chat(talk, "one", "two")
    assert "\x1b[2mHm.\x1b[0m\n\nYes\n" in shown(talk)
    assert [m["content"] for m in source.asked[1]] == ["one", "Yes", "two"]


def test_every_command_does_what_the_help_says() -> None:
    talk, source = conversation()
    chat(talk, "/help", "/nonsense", "/system")
    assert "/nonsense is no command" in shown(talk)
    assert "no system prompt" in shown(talk)
    assert all(command in HELP for command in COMMANDS)
    assert source.asked == []


@pytest.mark.parametrize("leave", ["/exit", "/quit", "/bye"])
def test_leaving(leave: str) -> None:
    talk, source = conversation([AnswerPart("a"), ENDS])
    chat(talk, leave, "not sent")
    assert source.asked == []


def test_two_interrupts_in_a_row_leave() -> None:
    talk, source = conversation([AnswerPart("a"), ENDS])
    chat(talk, KeyboardInterrupt, "one", KeyboardInterrupt)
    assert len(source.asked) == 1
    with pytest.raises(KeyboardInterrupt):
        chat(talk, KeyboardInterrupt, KeyboardInterrupt, "not sent")


def test_the_second_interrupt_of_an_answer_ends_the_program() -> None:
    """An answer that does not stop held the program for ever."""
    stopper, woken = Stopper(), []
    before = signal.getsignal(signal.SIGINT)
    with stopper.watching(), stopper.waking(lambda: woken.append(True)):
        signal.raise_signal(signal.SIGINT)
        assert (stopper.is_asked, woken) == (True, [True])
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert woken == [True]
    assert signal.getsignal(signal.SIGINT) is before
    with stopper.watching():
        assert not stopper.is_asked, "the next answer would end at once"


def test_an_interrupt_before_the_wait_ends_it() -> None:
    """Ctrl-C while the connection was opened did nothing; the answer then came in full."""
    stopper, woken = Stopper(), []
    with stopper.watching():
        signal.raise_signal(signal.SIGINT)
        with stopper.waking(lambda: woken.append(True)):
            assert woken == [True]


def test_one_message_from_a_pipe() -> None:
    talk, source = conversation(
        [AnswerPart("a"), ENDS], [AnswerPart("half"), AnswerPart(finish_reason=STOPPED)], terminal=False
    )
    answer_once(talk, "several\nlines\n")
    assert source.asked[0] == [{"role": "user", "content": "several\nlines"}]
    assert shown(talk) == "a\n", "a pipe wants the answer alone"
    with pytest.raises(KeyboardInterrupt):
        answer_once(talk, "x")
    with pytest.raises(AnswerError, match="no message"):
        answer_once(talk, " \n")
