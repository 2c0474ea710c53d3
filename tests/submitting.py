"""Requests of tests, submitted as a server does it."""

from __future__ import annotations

from dataclasses import replace

from sluice.process.client import EngineClient, Inbox
from sluice.types import Submit


def submit(client: EngineClient, *requests: Submit) -> Inbox:
    """Submit requests under new ids of a client, and return the inbox for their outputs."""
    return client.submit([replace(request, request_id=client.next_id()) for request in requests])
