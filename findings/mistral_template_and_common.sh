#!/usr/bin/env bash
# Mistral's chat templates and its reference tokenizer write other prompts: results of tools change places, text is lost.
#
# Version:  mistral-common 1.13.1; templates of Mistral Nemo (2407), Mistral Small 3.2 (2506) and Ministral 3 (2512) in
#           the sources of llama-cpp-python 0.3.36. mistral-common brings Nemo's vocabulary; for the formats v11 and v13 of
#           the others a vocabulary is made of it, as texts are compared, not tokens.
# Expected: the same text for the same conversation, up to what one of them refuses.
# Seen:     - Two calls whose results come back in the other order (as clients that run tools in parallel send them):
#             mistral-common puts results into the order of the calls. The templates do not, and Ministral 3 writes no
#             ids: there the result for one city stands in the place of the other.
#           - Text beside a call ("Let me look."): kept by mistral-common and Ministral 3, dropped without a word by the
#             template of Small 3.2.
#           - Nemo: a result that is no JSON is written without quotes, {"content": sunny, ...}, where mistral-common
#             quotes it.
#           - Two text parts of one message: joined with two line breaks by mistral-common, with nothing by the templates.
#           - An answer that ends in a space: mistral-common cuts it, so the next turn does not repeat what the model wrote.
#           - Small 3.2: arguments "" become "" by the template and {} by mistral-common. Ministral 3: arguments keep their
#             spelling in the template, and are written anew by mistral-common.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check mistral-common==1.13.1 jinja2==3.1.6
venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
    llama-cpp-python==0.3.36
tar xzf llama_cpp_python-0.3.36.tar.gz --wildcards --strip-components=5 '*/models/templates/*istral*.jinja'
venv/bin/python - <<'PYTHON'
import json
from pathlib import Path

import jinja2.sandbox
import mistral_common
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.base import SpecialTokens
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

DATA = Path(mistral_common.__file__).parent / "data"


def refuse(reason):
    raise ValueError(reason)


environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False)
environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: ""}


def of_version(version):
    """Nemo's vocabulary with every special token that mistral-common knows, as a file of the named format."""
    content = json.loads((DATA / "tekken_240911.json").read_text())
    names = [token["token_str"] for token in Tekkenizer.DEPRECATED_SPECIAL_TOKENS]
    names = [name for name in names if not name.startswith("<SPECIAL")]
    names += [token.value for token in SpecialTokens if token.value not in names]
    names += [f"<SPECIAL_{rank}>" for rank in range(len(names), 1000)]
    content["special_tokens"] = [
        {"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(names)
    ]
    content["config"]["version"] = version
    del content["image"]
    path = Path(f"tekken_{version}.json")
    path.write_text(json.dumps(content))
    return path


class Pair:
    def __init__(self, template, vocabulary, with_objects):
        self.template = environment.from_string(Path(template).read_text())
        self.tokenizer = MistralTokenizer.from_file(str(vocabulary))
        self.with_objects = with_objects  # as transformers passes arguments to a template

    def texts(self, *messages):
        common = self.tokenizer.encode_chat_completion(ChatCompletionRequest(messages=list(messages))).text
        shown = json.loads(json.dumps(messages))
        for call in (call for message in shown for call in message.get("tool_calls", ())):
            if self.with_objects and call["function"]["arguments"]:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return self.template.render(messages=shown, bos_token="<s>", eos_token="</s>"), common


def call(number, arguments):
    return {"id": f"abcdefgh{number}", "type": "function", "function": {"name": "weather", "arguments": arguments}}


def result(number, text):
    return {"role": "tool", "name": "weather", "tool_call_id": f"abcdefgh{number}", "content": text}


def said(role, content, **others):
    return {"role": role, "content": content, **others}


nemo = Pair("mistralai-Mistral-Nemo-Instruct-2407.jinja", DATA / "tekken_240718.json", True)
small = Pair("Mistral-Small-3.2-24B-Instruct-2506.jinja", of_version("v11"), True)
ministral = Pair("mistralai-Ministral-3-14B-Reasoning-2512.jinja", of_version("v13"), False)
START = said("system", "Be brief."), said("user", "Weather?")
ROME = '{"city": "Rome"}'
both = said("assistant", "", tool_calls=[call(1, ROME), call(2, '{"city": "Oslo"}')])

for pair in (small, ministral):
    by_template, by_common = pair.texts(*START, both, result(2, "snow in Oslo"), result(1, "sun in Rome"))
    assert by_template.index("snow in") < by_template.index("sun in")
    assert by_common.index("sun in") < by_common.index("snow in")
    print(by_template[by_template.index("[TOOL_CALLS]") :])
assert "abcdefgh" not in by_template  # of Ministral 3: nothing says which call a result belongs to

looking = said("assistant", "Let me look.", tool_calls=[call(1, ROME)])
kept = {name: ["Let me look." in text for text in pair.texts(*START, looking, result(1, "sun"))]
        for name, pair in (("small", small), ("ministral", ministral))}
assert kept == {"small": [False, True], "ministral": [True, True]}, kept

sunny = nemo.texts(START[1], said("assistant", "", tool_calls=[call(1, ROME)]), result(1, "sunny"))
assert '"content": sunny,' in sunny[0] and '"content": "sunny",' in sunny[1]

parts = said("user", [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])
for pair in (small, ministral):
    by_template, by_common = pair.texts(START[0], parts)
    assert "onetwo" in by_template and "one\n\ntwo" in by_common

for pair in (nemo, small, ministral):
    chat = said("user", "Hi"), said("assistant", "Hello. "), said("user", "Go on")
    by_template, by_common = pair.texts(*(chat if pair is nemo else (START[0], *chat)))
    assert "Hello. </s>" in by_template and "Hello.</s>" in by_common

empty = small.texts(*START, said("assistant", "", tool_calls=[call(1, "")]), result(1, "sun"))
assert '[ARGS]""' in empty[0] and "[ARGS]{}" in empty[1]
tight = ministral.texts(*START, said("assistant", "", tool_calls=[call(1, '{"city":"Rome"}')]), result(1, "sun"))
assert '[ARGS]{"city":"Rome"}' in tight[0] and '[ARGS]{"city": "Rome"}' in tight[1]
print("all as seen before")
PYTHON
