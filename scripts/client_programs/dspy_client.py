"""DSPy: text, and a signature whose answer is one of some words, by a schema and by the names of its fields."""

import sys
from typing import Literal

import dspy

url, key, _, max_tokens = sys.argv[1:]


class LM(dspy.LM):
    """DSPy sends schemas to models only that are in its list."""

    supported_params = frozenset(("response_format",))
    supports_response_schema = True


lm = LM("openai/sluice", api_base=f"{url}/v1", api_key=key, temperature=0, max_tokens=8 * int(max_tokens), cache=False)


class Sky(dspy.Signature):
    """Say how the sky is."""

    report: str = dspy.InputField()
    sky: Literal["clear", "cloudy"] = dspy.OutputField()


dspy.configure(lm=lm, adapter=dspy.JSONAdapter())
found = dspy.Predict(Sky)(report="There are no clouds.")
assert found.sky in ("clear", "cloudy"), found
assert lm("What is a sluice?")[0], "no text"
