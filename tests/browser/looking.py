"""Opens a file in a browser, and what can be asked of a page that is open."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, ConsoleMessage, Page

TIMEOUT_MS = 60_000.0
"""How long is waited for what a page is to show: it takes a moment on a machine however busy."""
CONTRAST = """
(selector) => {
  const channels = (text) => {
    const paint = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    paint.fillStyle = text; paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (text) => {
    const [r, g, b] = channels(text).map((c) => c / 255)
      .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const opaque = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return 'white';
  };
  const node = document.querySelector(selector), style = getComputedStyle(node);
  const own = !(node instanceof SVGElement) ? style.color : style.stroke !== 'none' ? style.stroke : style.fill;
  const [high, low] = [light(own), light(opaque(node))].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
}
"""
"""Contrast of a mark or text with what is behind it, as WCAG 2 defines it: 1 to 21."""


@dataclass
class Look:
    """A page that is open."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """What it asked for, itself left out."""

    def boxes(self, selector: str) -> list[dict[str, float]]:
        """Where these elements are, in pixels: x, y, width, height, and text."""
        found: list[dict[str, float]] = self.page.eval_on_selector_all(
            selector,
            "nodes => nodes.map(n => {const {x, y, width, height} = n.getBoundingClientRect();"
            " return {x, y, width, height}})",
        )
        return found

    def contrast(self, selector: str) -> float:
        found: float = self.page.evaluate(CONTRAST, selector)
        return found

    def pixel(self, x: float, y: float) -> tuple[int, ...]:
        """Red, green and blue of a place in the window, 0 to 255, as it is on the screen."""
        png = self.page.screenshot(clip={"x": x, "y": y, "width": 1, "height": 1})
        data = b"".join(png[at + 8 : at + 8 + length] for kind, at, length in _chunks(png) if kind == b"IDAT")
        return tuple(zlib.decompress(data)[1:4])  # the byte before is the filter, which leaves a first pixel as it is

    def ask(self, script: str, argument: object = None) -> Any:
        return self.page.evaluate(script, argument)


def _chunks(png: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kind, place and length of the parts of a PNG file."""
    at = 8
    while at < len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        yield png[at + 4 : at + 8], at, length
        at += 12 + length


@contextmanager
def looking(
    browser: Browser, path: Path, *, width: int = 1000, scheme: Literal["dark", "light"] = "light"
) -> Iterator[Look]:
    """The page of a file, loaded."""
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    look = Look(page)

    def said(message: ConsoleMessage) -> None:
        look.complaints.append(f"{message.type}: {message.text}")

    page.on("console", said)
    page.on("pageerror", lambda error: look.complaints.append(str(error)))
    page.on("request", lambda request: look.requests.append(request.url))
    page.goto(path.as_uri())
    look.requests.remove(path.as_uri())
    yield look
    context.close()
