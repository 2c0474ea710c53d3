"""Talk to a running server with the official OpenAI client.

    make serve                                            # in another terminal
    .venv/bin/python examples/client.py [URL]             # http://127.0.0.1:8000 by default

It streams a chat, asks for log-probabilities, and shows how an error looks.
"""

from __future__ import annotations

import argparse
import sys

import openai


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000", help="the server, without /v1")
    url = parser.parse_args().url
    try:
        talk(url)
    except openai.APIConnectionError as error:
        sys.exit(f"no server at {url!r}: {error.__cause__ or error}")


def talk(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused")
    model = client.models.list().data[0].id

    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "What is a sluice?"}],
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    )
    for event in stream:
        if event.choices:
            print(event.choices[0].delta.content or "", end="", flush=True)
        elif event.usage is not None:
            print(f"\n{event.usage.prompt_tokens} prompt tokens, {event.usage.completion_tokens} output tokens")

    # Fields beyond OpenAI's own go into `extra_body`.
    answer = client.completions.create(
        model=model, prompt="The water", max_tokens=4, logprobs=1, temperature=0, extra_body={"min_tokens": 4}
    )
    scores = answer.choices[0].logprobs
    assert scores is not None
    for token, logprob in zip(scores.tokens or (), scores.token_logprobs or (), strict=True):
        print(f"{token!r}: {logprob:.3f}")

    try:
        client.completions.create(model=model, prompt="The water", temperature=-0.5)
    except openai.BadRequestError as error:
        print(f"refused: {error.message}")


if __name__ == "__main__":
    main()
