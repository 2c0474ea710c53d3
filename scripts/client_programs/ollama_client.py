"""Ollama's Python client: models, chats and generations, whole and streamed."""

import sys

import ollama

url, key, prompt, max_tokens = sys.argv[1:]
client = ollama.Client(host=url, headers={"Authorization": f"Bearer {key}"})
options = {"temperature": 0, "num_predict": int(max_tokens)}
messages = [{"role": "user", "content": prompt}]
(model,) = [model.model for model in client.list().models]
whole = client.chat("sluice", messages, options=options)
assert whole.eval_count <= int(max_tokens), whole
parts = client.chat("sluice", messages, options=options, stream=True)
assert "".join(part.message.content or "" for part in parts) == whole.message.content, "streamed otherwise"
text = client.generate("sluice", "The water", options=options).response
parts = client.generate("sluice", "The water", options=options, stream=True)
assert "".join(part.response for part in parts) == text, "streamed otherwise"
assert client.show("sluice").model_dump()
try:
    client.chat("no-such-model", messages)
    raise SystemExit("another model was taken")
except ollama.ResponseError as error:
    if error.status_code != 404:
        raise
print(whole.message.content)
