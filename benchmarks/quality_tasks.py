"""Ask a model for JSON, for calls of tools, and everyday questions; compare the first two with llama.cpp.

    python benchmarks/quality_tasks.py --json benchmarks/results/quality-tasks.json
    python benchmarks/quality_tasks.py MODEL.gguf --llama-python VENV/bin/python    # a Python with llama-cpp-python

The tasks are in `benchmarks/tasks`: 40 texts to describe as JSON of a given schema, 30 requests of which each wants one
of three tools (with `tool_choice` "required" and "auto"), and 30 questions whose answers are printed for a person to
read. Tasks are greedy; everyday answers use the model's own sampling parameters with a fixed seed.

    valid           the answer is JSON that fits the schema; or one call of an offered tool whose arguments fit
    right           it equals the expected value of the task; case and spaces around texts do not count

llama.cpp gets the same token ids as prompts, and the same schemas, as its own grammars of them. Under "required" its
prompt ends with the tag that begins a call, and the schema is that of the call's JSON; under "auto" neither has a
constraint.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.peers.peer import Command
from benchmarks.peers.server_process import free_port, serving
from sluice.bench.results import machine, versions
from sluice.models.default_model import default_file

TASKS = Path(__file__).parent / "tasks"
PEER = Path(__file__).parent / "peers" / "llama_cpp_answers.py"
MAX_TOKENS = 200
CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)
WHITESPACE = " ?"
"""Allowed between all parts of JSON, as by llama-cpp-python's grammars. Ours have a space behind commas and colons."""
OPENING = "<tool_call>\n"
"""How a call begins in the format of the default model's template (hermes)."""
Post = Callable[[str, dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Task:
    """One answer to be judged."""

    kind: str
    chat: dict[str, Any]
    """Fields of a chat, but for sampling."""
    schema: dict[str, Any]
    """What a valid answer fits. A call is the object of its `name` and its `arguments`."""
    expected: dict[str, Any]

    @property
    def is_call(self) -> bool:
        return "tools" in self.chat


def tasks() -> list[Task]:
    """Read the tasks."""
    found = []
    for kind, spaces in (("JSON", {}), ("JSON, whitespace as in llama.cpp", {"whitespace_pattern": WHITESPACE})):
        for group in json.loads((TASKS / "json.json").read_text(encoding="utf-8")):
            form = {"structured_outputs": {"json": group["schema"], **spaces}}
            for text, expected in group["cases"]:
                chat = {"messages": [{"role": "user", "content": f"{text}\n{group['ask']}"}], **form}
                found.append(Task(kind, chat, group["schema"], expected))
    for choice in ("required", "auto"):
        for group in json.loads((TASKS / "tools.json").read_text(encoding="utf-8")):
            functions = [{"name": name, **tool} for name, tool in group["tools"].items()]
            common: dict[str, Any] = {
                "tools": [{"type": "function", "function": function} for function in functions],
                "tool_choice": choice,
                "parallel_tool_calls": False,
            }
            schema = {"anyOf": [call_schema(function) for function in functions]}
            for text, name, arguments in group["cases"]:
                chat = {"messages": [{"role": "user", "content": text}], **common}
                expected = {"name": name, "arguments": arguments}
                found.append(Task(f"tools, {choice}", chat, schema, expected))
    return found


def call_schema(function: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a call of a function."""
    properties = {"name": {"const": function["name"]}, "arguments": function["parameters"]}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def poster(url: str) -> Post:
    """Return a function that sends a body to a path and returns the answer's JSON."""

    def post(path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)

    return post


def answered(post: Post, task: Task) -> str:
    """Return the text of a task's answer, or its call as JSON."""
    greedy = {"temperature": 0, "repetition_penalty": 1, "max_tokens": MAX_TOKENS}
    message = post("/v1/chat/completions", {**task.chat, **greedy})["choices"][0]["message"]
    if not (calls := message.get("tool_calls")):
        return str(message["content"])
    (call,) = (each["function"] for each in calls)
    return f'{{"name": {json.dumps(call["name"])}, "arguments": {call["arguments"]}}}'


def answered_by_llama_cpp(post: Post, python: str, model: Path, asked: Sequence[Task]) -> tuple[str, list[str]]:
    """Return llama.cpp's version, and its answers to tasks."""
    opening = post("/tokenize", {"prompt": OPENING, "add_special_tokens": False})["tokens"]
    requests = []
    for task in asked:
        shown = {name: value for name, value in task.chat.items() if name in ("messages", "tools")}
        ids = post("/tokenize", shown)["tokens"]
        is_free = task.chat.get("tool_choice") == "auto"
        forced = opening if task.is_call and not is_free else []
        requests.append({"ids": ids + forced, "schema": None if is_free else task.schema})
    given = json.dumps({"model": str(model), "max_tokens": MAX_TOKENS, "requests": requests})
    done = subprocess.run([python, str(PEER)], input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"llama.cpp failed: {done.stderr[-2000:]}")
    result = json.loads(done.stdout)
    answers = zip(asked, result["texts"], strict=True)
    return result["version"], [called(text) if task.is_call else text for task, text in answers]


def called(text: str) -> str:
    """Return what stands between the tags of a call, or the whole text."""
    found = CALL.search(text)
    return text if found is None else found[1]


def judged(task: Task, text: str) -> tuple[bool, bool]:
    """Return whether an answer is valid, and whether it is right."""
    try:
        value = json.loads(text)
        jsonschema.validate(value, task.schema)
    except (ValueError, jsonschema.ValidationError):
        return False, False
    return True, plain(value) == plain(task.expected)


def plain(value: Any) -> Any:
    """Return a value of JSON whose texts have no capitals, and no spaces around them."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.strip().casefold() if isinstance(value, str) else value


def everyday(post: Post) -> list[dict[str, str]]:
    """Ask the everyday questions."""
    found = []
    for question in (TASKS / "everyday.txt").read_text(encoding="utf-8").splitlines():
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": MAX_TOKENS, "seed": 0}
        answer = post("/v1/chat/completions", body)["choices"][0]["message"]["content"]
        found.append({"question": question, "answer": answer})
        print(f"\n> {question}\n{answer}", flush=True)
    return found


def table(asked: Sequence[Task], answers: dict[str, list[str]]) -> dict[str, dict[str, dict[str, int]]]:
    """Count what is valid and right: by kind of task, then by engine. Prints a table in Markdown, too."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for engine, texts in answers.items():
        for task, text in zip(asked, texts, strict=True):
            counts = found.setdefault(task.kind, {}).setdefault(engine, {"tasks": 0, "valid": 0, "right": 0})
            valid, right = judged(task, text)
            for name, value in (("tasks", True), ("valid", valid), ("right", right)):
                counts[name] += value
    print("\n| task | engine | tasks | valid | right |\n|---|---|---|---|---|")
    for kind, engines in found.items():
        for engine, counts in engines.items():
            print(f"| {kind} | {engine} | {counts['tasks']} | {counts['valid']} | {counts['right']} |")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a GGUF file; default: the default model")
    parser.add_argument("--llama-python", help="a Python that has llama-cpp-python")
    parser.add_argument("--json", type=Path, help="write the result here")
    args = parser.parse_args()
    asked, port = tasks(), free_port()
    answers: dict[str, list[str]] = {}
    packages = versions(("torch", "llguidance"))
    command = [sys.executable, "-m", "sluice", "serve", *([args.model] if args.model else []), "--port", str(port)]
    with tempfile.TemporaryDirectory() as folder, serving(Command(command), port, Path(folder) / "log"):
        post = poster(f"http://127.0.0.1:{port}")
        answers["Sluice"] = [answered(post, task) for task in asked]
        if args.llama_python:
            model = Path(args.model or default_file(None) or "")
            version, texts = answered_by_llama_cpp(post, args.llama_python, model, asked)
            answers["llama.cpp"], packages["llama-cpp-python"] = texts, version
        read = everyday(post)
    counts = table(asked, answers)
    if args.json is not None:
        rows = [
            {"kind": task.kind, "text": task.chat["messages"][0]["content"], "expected": task.expected}
            | {engine: texts[index] for engine, texts in answers.items()}
            for index, task in enumerate(asked)
        ]
        result = {"machine": machine(), "versions": packages, "counts": counts, "everyday": read, "tasks": rows}
        args.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
