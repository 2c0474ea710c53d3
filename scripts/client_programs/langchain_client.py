"""LangChain's ChatOpenAI: whole, streamed and as a batch."""

import sys

from langchain_openai import ChatOpenAI

url, key, prompt, max_tokens = sys.argv[1:]
chat = ChatOpenAI(
    model="sluice", base_url=f"{url}/v1", api_key=key, temperature=0, max_tokens=int(max_tokens), max_retries=0
)
whole = chat.invoke(prompt)
assert "".join(part.content for part in chat.stream(prompt)) == whole.content, "streamed otherwise"
assert whole.usage_metadata["output_tokens"] <= int(max_tokens), whole.usage_metadata
assert [answer.content for answer in chat.batch([prompt, prompt])] == [whole.content] * 2, "in a batch otherwise"
print(whole.content)
