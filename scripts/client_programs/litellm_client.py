"""LiteLLM: as OpenAI's server and as vLLM's (hosted_vllm), whole and streamed; completions."""

import sys

import litellm

url, key, prompt, max_tokens = sys.argv[1:]
litellm.telemetry = False
asked = {"api_base": f"{url}/v1", "api_key": key, "temperature": 0, "max_tokens": int(max_tokens), "num_retries": 0}
messages = [{"role": "user", "content": prompt}]
whole = litellm.completion("openai/sluice", messages, **asked).choices[0].message.content
for model in ("openai/sluice", "hosted_vllm/sluice"):
    parts = litellm.completion(model, messages, stream=True, **asked)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole, f"{model} streamed otherwise"
assert litellm.text_completion("The water", "text-completion-openai/sluice", **asked).choices[0].text
print(whole)
