"""A browser for tests of what people see. Debian's chromium; without one these tests are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from browser.looking import TIMEOUT_MS

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests of a module; each opens pages of its own."""
    found = [path for name in NAMES if (path := shutil.which(name))]
    if not found:
        pytest.skip(f"needs a browser, one of {', '.join(NAMES)} on the PATH (apt-get install chromium)")
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found[0], args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()
