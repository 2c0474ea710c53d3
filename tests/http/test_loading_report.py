"""What `sluice serve` writes to standard error while the model loads."""

from __future__ import annotations

import io

import pytest

from sluice.engine.heartbeat import LoadingPart, Phase
from sluice.http.observe.loading_report import ERASE, LoadingReport
from sluice.process.engine_state import Loading
from sluice.process.heartbeat import Reading
from sluice.process.loading_pace import LoadingPace


def reading(part: LoadingPart, done: int = 0, total: int = 0) -> Reading:
    return Reading(0, Phase.LOADING, -1, 0, 0, part, done, total)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_changes() -> None:
    output = Terminal()
    report = LoadingReport(output)
    report.show(Loading(reading(LoadingPart.STARTING), 0.2))
    report.show(Loading(reading(LoadingPart.WEIGHTS, 30, 40), 1.4, 3.4))
    *_, last = output.getvalue().split(ERASE)
    assert last == "loading the model: weights, 75%, 1 s so far, about 3 s left"
    report.close()
    assert output.getvalue().endswith(ERASE)
    assert "\n" not in output.getvalue()


def test_the_bars_of_downloads_are_left_alone() -> None:
    output = Terminal()
    report = LoadingReport(output)
    report.show(Loading(reading(LoadingPart.STARTING), 0.2))
    report.show(Loading(reading(LoadingPart.FILES), 1.0))
    shown = output.getvalue()
    assert shown.endswith(ERASE)
    report.show(Loading(reading(LoadingPart.FILES), 1.2))
    report.close()
    assert output.getvalue() == shown


def test_a_file_has_a_line_now_and_then() -> None:
    """A log of a start that takes a minute would have three hundred."""
    output = io.StringIO()
    report = LoadingReport(output)
    for tenths in range(0, 131, 2):
        report.show(Loading(reading(LoadingPart.PACKING, tenths, 130), tenths / 10, 13 - tenths / 10))
    report.close()
    assert output.getvalue().splitlines() == [
        "sluice: loading the model: packing, 38%, 5 s so far, about 8 s left",
        "sluice: loading the model: packing, 76%, 10 s so far, about 3 s left",
    ]


def test_a_log_in_json_stays_json(caplog: pytest.LogCaptureFixture) -> None:
    report = LoadingReport(None)
    with caplog.at_level("INFO", "sluice"):
        report.show(Loading(reading(LoadingPart.MEMORY), 5.0))
    report.close()
    assert caplog.messages == ["loading the model: memory, 5 s so far"]


def test_the_time_that_is_left() -> None:
    """By how fast the present part went: packing is no slower because a download was."""
    pace = LoadingPace()
    assert pace.seconds_left(reading(LoadingPart.FILES), 0.0) is None
    assert pace.seconds_left(reading(LoadingPart.WEIGHTS, 0, 100), 100.0) is None
    assert pace.seconds_left(reading(LoadingPart.WEIGHTS, 1, 100), 100.1) is None, "too early to tell"
    assert pace.seconds_left(reading(LoadingPart.WEIGHTS, 20, 100), 102.0) == 8.0
    assert pace.seconds_left(reading(LoadingPart.PACKING, 5, 10), 102.2) is None
    assert pace.seconds_left(reading(LoadingPart.PACKING, 8, 10), 103.7) == 1.0
    assert pace.seconds_left(reading(LoadingPart.MEMORY), 110.0) is None
