"""Take the pictures of docs/first-minutes.md: the page at `/` in chromium, over a server with the bundled model.

    python benchmarks/record_first_minutes.py

It starts `sluice serve` and prints what that prints, opens the address, asks a question, and lets the page send its
long prompt beside three streams.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

CHROMIUM = "/usr/bin/chromium"
DOCS = Path(__file__).parents[1] / "docs"
SIZE = (1180, 900)
QUESTION = "The brass key is behind the mill. The red boat is near the bridge.\n\nWhere is the brass key?"
QUALITY = 70
"""Of JPEG: the pictures stay readable and small."""
MS = 60_000.0


@contextmanager
def serving() -> Iterator[str]:
    """Start a server on a free port. Yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "sluice", "serve", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            while "curl" not in (line := server.stdout.readline()):
                assert line or server.poll() is None, "the server ended"
                print(line, end="")
            print(line, end="")
            yield f"http://127.0.0.1:{port}/"
        finally:
            server.terminate()


def take(page: Page, folder: Path) -> None:
    """Take the three pictures."""
    expect(page.locator("#trace-state")).to_have_text("live", timeout=MS)
    page.screenshot(path=folder / "first-page.jpg", type="jpeg", quality=QUALITY)
    page.get_by_role("textbox", name="Message", exact=True).fill(QUESTION)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Copy this answer")).to_be_visible(timeout=MS)
    page.wait_for_timeout(1500)  # the timeline lags behind
    page.screenshot(path=folder / "first-answer.jpg", type="jpeg", quality=QUALITY)
    page.get_by_role("button", name="Send a 4,000-token prompt now").click()
    expect(page.locator("#long-result")).to_contain_text("were read in", timeout=MS)
    page.wait_for_timeout(4500)  # the recorded run is played up to where its streams go on
    page.screenshot(path=folder / "first-streams.jpg", type="jpeg", quality=QUALITY)
    print(page.get_by_role("article", name="Answer").inner_text())
    print(page.locator("#long-result").inner_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of the pictures")
    args = parser.parse_args()
    with serving() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-lcd-text"]
        )
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
        page.goto(url)
        take(page, args.out)
        browser.close()


if __name__ == "__main__":
    main()
