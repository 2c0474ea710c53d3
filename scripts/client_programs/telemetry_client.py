"""OpenTelemetry's instrumentation of openai: its span has the GenAI attributes, taken from the answer."""

import sys

import openai
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

url, key, prompt, max_tokens = sys.argv[1:]
spans, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
OpenAIInstrumentor().instrument(tracer_provider=provider)
asked = {"model": "sluice", "temperature": 0, "max_tokens": int(max_tokens)}
with openai.OpenAI(base_url=f"{url}/v1", api_key=key) as client:
    answer = client.chat.completions.create(**asked, messages=[{"role": "user", "content": prompt}])
(span,) = spans.get_finished_spans()
found = dict(span.attributes)
assert found["gen_ai.request.model"] == found["gen_ai.response.model"] == "sluice", found
assert found["gen_ai.usage.output_tokens"] == answer.usage.completion_tokens, found
assert found["gen_ai.usage.input_tokens"] == answer.usage.prompt_tokens, found
assert tuple(found["gen_ai.response.finish_reasons"]) == (answer.choices[0].finish_reason,), found
assert found["gen_ai.response.id"] == answer.id, found
print(answer.choices[0].message.content)
