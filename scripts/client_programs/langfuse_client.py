"""langfuse's drop-in for openai, whole and streamed. Its own server is out of reach, so nothing is sent to it."""

import sys

from langfuse import Langfuse
from langfuse.openai import openai

url, key, prompt, max_tokens = sys.argv[1:]
Langfuse(public_key="pk", secret_key="sk", host="http://127.0.0.1:9", tracing_enabled=False)
asked = {"model": "sluice", "temperature": 0, "max_tokens": int(max_tokens)}
asked |= {"messages": [{"role": "user", "content": prompt}]}
with openai.OpenAI(base_url=f"{url}/v1", api_key=key) as client:
    text = client.chat.completions.create(**asked).choices[0].message.content
    parts = client.chat.completions.create(**asked, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == text, "streamed otherwise"
print(text)
