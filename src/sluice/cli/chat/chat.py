"""The loop of `sluice chat`: messages from a terminal, or one from a pipe, and commands that begin with a slash."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sluice.cli.chat.answers import STOPPED, AnswerError
from sluice.cli.chat.conversation import ChatHistory
from sluice.cli.chat.message import Entered, message_of
from sluice.cli.chat.stopping import Stopper

WITHOUT_SYSTEM = "-"
HELP = """\
/system TEXT   set the system prompt; /system shows it, /system - removes it
/clear         forget the conversation, but not the system prompt
/stats         what the answers took
/help          this list
/exit          leave; so do Ctrl-D, and Ctrl-C twice
A line that ends with \\ goes on in the next one; a message between \"\"\" and \"\"\" may have many lines.
Ctrl-C stops an answer. The arrow keys bring back earlier messages."""
COMMANDS = ("/system", "/clear", "/stats", "/help", "/exit")
ENDED = {
    STOPPED: "[stopped; what was written stays in the conversation]",
    "length": "[the answer reached --max-tokens or the end of the context]",
}


class Chat:
    """A conversation in a terminal.

    Args:
        read: shows a prompt and returns a message.
    """

    def __init__(self, conversation: ChatHistory, read: Callable[[], str]) -> None:
        self._talk = conversation
        self._read = read
        self._stopper = Stopper()
        self._commands: Mapping[str, Callable[[str], bool]] = {
            "/system": self._system,
            "/clear": self._clear,
            "/stats": self._stats,
            "/help": self._help,
            "/exit": lambda _: False,
            "/quit": lambda _: False,
            "/bye": lambda _: False,
        }

    def run(self) -> None:
        """Talk until the user leaves.

        Raises:
            KeyboardInterrupt: by a second Ctrl-C.
        """
        talk = self._talk
        talk.screen.note(f"{talk.source.model}, {talk.source.where}. /help lists the commands, /exit leaves.")
        is_warned, goes_on = False, True
        while goes_on:
            try:
                entered = message_of(self._read())
            except EOFError:
                talk.screen.end()
                return
            except KeyboardInterrupt:
                talk.screen.end()
                if is_warned:
                    raise
                is_warned = True
                talk.screen.note("Ctrl-C again leaves; so does /exit.")
                continue
            is_warned = False
            goes_on = self._handle(entered)

    def _handle(self, entered: Entered) -> bool:
        """Do what was entered. Returns whether the conversation continues."""
        if not entered.text.strip():
            return True
        if entered.is_command:
            name, _, rest = entered.text.partition(" ")
            if name not in self._commands:
                note = f"{name} is no command: /help lists them. A message may begin with a slash behind a space."
                self._talk.screen.note(note)
                return True
            return self._commands[name](rest.strip())
        try:
            how = self._talk.send(entered.text, self._stopper)
        except AnswerError as error:
            self._talk.screen.note(f"error: {error}")
        else:
            if how in ENDED:
                self._talk.screen.note(ENDED[how])
        return True

    def _system(self, text: str) -> bool:
        talk = self._talk
        if text:
            talk.system = "" if text == WITHOUT_SYSTEM else text
        talk.screen.note(f"system prompt: {talk.system}" if talk.system else "no system prompt")
        return True

    def _clear(self, _: str) -> bool:
        self._talk.clear()
        self._talk.screen.note("the conversation is empty")
        return True

    def _stats(self, _: str) -> bool:
        self._talk.screen.note(self._talk.stats())
        return True

    def _help(self, _: str) -> bool:
        self._talk.screen.note(HELP)
        return True


def answer_once(conversation: ChatHistory, text: str) -> None:
    """Answer one message, which may have many lines.

    Raises:
        AnswerError: it is empty, or there is no whole answer.
        KeyboardInterrupt: the user stopped it.
    """
    if not text.strip():
        raise AnswerError("standard input holds no message")
    if conversation.send(text.rstrip("\n"), Stopper()) == STOPPED:
        raise KeyboardInterrupt
