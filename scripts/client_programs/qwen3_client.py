"""openai against a tiny Qwen3: the switch of its chat template, and a conversation with reasoning."""

import sys

import openai

url, key, prompt, max_tokens = sys.argv[1:]
asked = {"model": "qwen3", "temperature": 0, "max_tokens": int(max_tokens)}
talk = [
    {"role": "user", "content": "Two and two?"},
    {"role": "assistant", "content": "<think>\nI count.\n</think>\n\nFour."},
    {"role": "user", "content": [{"type": "text", "text": prompt}]},
]


def tokens(client: openai.OpenAI, **more: object) -> int:
    return client.chat.completions.create(**asked, messages=talk, **more).usage.prompt_tokens


def ids(client: openai.OpenAI, messages: list[dict[str, object]]) -> list[int]:
    return client.post("/../tokenize", cast_to=object, body={"messages": messages})["tokens"]


with openai.OpenAI(base_url=f"{url}/v1", api_key=key) as client:
    thinks = tokens(client)
    assert tokens(client, extra_body={"chat_template_kwargs": {"enable_thinking": True}}) == thinks
    silent = tokens(client, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert silent > thinks, "enable_thinking: false adds an empty block of thoughts"
    assert tokens(client, tools=[], tool_choice="none") == thinks
    stripped = [talk[0], {"role": "assistant", "content": "Four."}, talk[2]]
    assert ids(client, talk) == ids(client, stripped), "thoughts of earlier turns are left out"
    whole = client.chat.completions.create(**asked, messages=talk).choices[0].message.content
    parts = client.chat.completions.create(**asked, messages=talk, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == whole, "streamed otherwise"
