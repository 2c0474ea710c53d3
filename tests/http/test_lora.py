"""`sluice serve` with adapters: files in PEFT's format, a real engine, and what clients and operators do with them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import processes
import tiny_models
from lora_makers import Lora, wide
from processes import free_port
from serve_process import announced, server
from sluice import LLM, SamplingParams
from tokenizer_makers import byte_tokenizer

VOCAB = 257
ADMIN, KEY = "of-the-operator", "of-a-client"
LORAS = {name: Lora(seed, rank=rank) for name, seed, rank in (("a", 1, 2), ("b", 2, 5), ("c", 3, 8))}
PROMPT = list(b"The water runs over the wheel")
TOKENS = 10


def base_model() -> Any:
    return wide(tiny_models.llama(vocab_size=VOCAB))


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@dataclass
class Served:
    """A running server."""

    url: str
    pid: int
    folder: Path
    """Whose adapters may be loaded."""
    merged: dict[str, list[int]]
    """Tokens of models with an adapter in their weights; "": without one."""

    def post(self, path: str, key: str = KEY, **body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=60)

    def get(self, path: str) -> Any:
        return httpx.get(self.url + path, headers={"Authorization": f"Bearer {KEY}"}, timeout=60).json()

    def load(self, name: str, path: str, **body: Any) -> httpx.Response:
        return self.post("/v1/load_lora_adapter", ADMIN, lora_name=name, lora_path=path, **body)

    def unload(self, name: str) -> httpx.Response:
        return self.post("/v1/unload_lora_adapter", ADMIN, lora_name=name)

    def tokens(self, model: str | None, **body: Any) -> list[int]:
        asked: dict[str, Any] = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        asked |= ({} if model is None else {"model": model}) | {"return_token_ids": True} | body
        answer = self.post("/v1/completions", **asked)
        assert answer.status_code == 200, answer.text
        found: list[int] = answer.json()["choices"][0]["token_ids"]
        return found

    @contextmanager
    def stream(self, model: str, count: int) -> Iterator[Iterator[list[int]]]:
        """The ids of each event of a stream."""
        body = {"model": model, "prompt": PROMPT, "max_tokens": count, "temperature": 0, "ignore_eos": True}
        body |= {"stream": True, "return_token_ids": True}
        headers = {"Authorization": f"Bearer {KEY}"}
        with httpx.stream("POST", f"{self.url}/v1/completions", json=body, headers=headers, timeout=60) as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("data: {"))
            yield (json.loads(line.removeprefix("data: "))["choices"][0].get("token_ids") or [] for line in lines)

    def names(self) -> list[str]:
        return [each["id"] for each in self.get("/v1/models")["data"]]


def merged_tokens(folder: Path) -> dict[str, list[int]]:
    found = {}
    for name in ("", *LORAS):
        model = base_model()
        if name:
            LORAS[name].merge(model)
        with LLM(saved(model, folder / f"merged-{name}"), dtype="float64", max_total_tokens=512) as llm:
            params = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True)
            (result,) = llm.generate(PROMPT, params)
            found[name] = list(result.samples[0].token_ids)
    assert len(set(map(tuple, found.values()))) == len(found), "adapters that change nothing show nothing"
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("lora")
    saved(base_model(), folder / "tiny")
    allowed = folder / "allowed"
    for name, lora in LORAS.items():
        lora.save(base_model(), (folder / "outside" if name == "c" else allowed) / name)
    (allowed / "link").symlink_to(folder / "outside" / "c")
    LORAS["c"].save(base_model(), allowed / "with-link")
    (allowed / "with-link" / "adapter_model.safetensors").unlink()
    (allowed / "with-link" / "adapter_model.safetensors").symlink_to(folder / "outside/c/adapter_model.safetensors")
    LORAS["c"].save(base_model(), allowed / "c")
    (allowed / "empty").mkdir()
    for name, content in (("keys", KEY), ("admin", ADMIN)):
        (folder / name).write_text(content)
    port = free_port()
    command = ("-m", "sluice", "serve", str(folder / "tiny"), "--port", str(port), "--dtype", "float64", "--no-page")
    command += ("--max-total-tokens", "2048", "--max-loras", "2", "--lora-dir", str(allowed), "--lora-modules")
    command += (f"a={allowed / 'a'}", json.dumps({"name": "b", "path": str(allowed / "b")}))
    command += ("--api-key-file", str(folder / "keys"), "--admin-key-file", str(folder / "admin"))
    merged = merged_tokens(folder)
    with server(*command) as process:
        announced(process)
        yield Served(f"http://127.0.0.1:{port}", process.pid, allowed, merged)


def test_requests_name_adapters_as_their_model(served: Served) -> None:
    """Each answer is that of a model with the adapter in its weights, beside others in the same steps."""
    with ThreadPoolExecutor(6) as pool:
        models = ["a", "b", None, "a", "tiny", "b"]
        found = list(pool.map(served.tokens, models))
    expected = [served.merged["" if model in (None, "tiny") else model] for model in models]
    assert found == expected


def test_models_are_listed_with_their_parent(served: Served) -> None:
    listed = {each["id"]: each.get("parent") for each in served.get("/v1/models")["data"]}
    assert listed["tiny"] is None
    assert (listed["a"], listed["b"]) == ("tiny", "tiny")
    assert served.get("/v1/models/a")["parent"] == "tiny"


def test_answers_have_the_name_of_the_adapter(served: Served) -> None:
    body: dict[str, Any] = {"max_tokens": 2, "model": "a"}
    assert served.post("/v1/completions", prompt="x", **body).json()["model"] == "a"
    assert served.post("/v1/embeddings", model="a", input="x").json()["model"] == "a"
    assert served.post("/tokenize", model="a", prompt="x").json()["count"] == 1
    refused = served.post("/v1/completions", prompt="x", model="z")
    assert refused.status_code == 404
    assert "'z' does not exist; this server has 'tiny' and 'a'" in refused.json()["error"]["message"]


def test_sglang_names_adapters_in_lora_path(served: Served) -> None:
    sampling = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    found = served.post("/generate", input_ids=PROMPT, lora_path="b", sampling_params=sampling).json()
    assert found["output_ids"] == served.merged["b"]
    assert served.tokens("tiny", lora_path="a") == served.merged["a"]
    assert served.tokens("tiny:a") == served.merged["a"]
    assert served.post("/generate", text="x", lora_path="z").status_code == 404


def test_an_embedding_is_that_of_the_adapter(served: Served) -> None:
    by_model = {
        name: tuple(served.post("/v1/embeddings", model=name, input="water").json()["data"][0]["embedding"])
        for name in ("tiny", "a", "b")
    }
    assert len(set(by_model.values())) == 3


def test_operators_load_and_unload_adapters(served: Served) -> None:
    """Three adapters in two places: the one that was used least recently gives up its place."""
    loaded = served.load("c", "c")
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'c' added successfully.")
    assert served.names() == ["tiny", "a", "b", "c"]
    for name in ("c", "a", "b", "c"):
        assert served.tokens(name) == served.merged[name]
    taken = served.load("c", "a")
    assert (taken.status_code, taken.json()["error"]["code"]) == (400, "adapter_exists")
    assert served.load("tiny", "a").json()["error"]["code"] == "adapter_exists"
    gone = served.unload("c")
    assert (gone.status_code, gone.text) == (200, "Success: LoRA adapter 'c' removed successfully.")
    assert served.post("/v1/completions", prompt="x", model="c").status_code == 404
    assert served.unload("c").status_code == 404


def test_a_name_with_other_content_finds_nothing_of_the_one_before(served: Served) -> None:
    """Cached keys and values of the first adapter would give tokens of neither."""
    served.load("new", "c")
    assert served.tokens("new") == served.tokens("new") == served.merged["c"]
    assert served.load("new", "b", load_inplace=True).status_code == 200
    assert served.tokens("new") == served.merged["b"]
    served.unload("new")


@pytest.mark.parametrize("path", ["../outside/c", "link", "with-link", "/etc", "c/../../outside/c"])
def test_paths_do_not_lead_out_of_the_folder(served: Served, path: str) -> None:
    refused = served.load("x", path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "path_not_allowed")


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [("nothing", 404, "no adapter found at 'nothing'"), ("empty", 400, "adapter_config.json")],
)
def test_what_is_no_adapter_is_refused_with_the_reason(served: Served, path: str, status: int, said: str) -> None:
    refused = served.load("x", path)
    assert refused.status_code == status
    assert said in refused.json()["error"]["message"]


def test_only_operators_load(served: Served) -> None:
    """A client that could load an adapter could decide what others are answered."""
    for verb in ("load", "unload"):
        for prefix in ("", "/v1"):
            path = f"{prefix}/{verb}_lora_adapter"
            assert served.post(path, KEY, lora_name="x", lora_path="a").status_code == 401
            assert served.post(path, "no key", lora_name="x", lora_path="a").status_code == 401


def test_sglangs_routes(served: Served) -> None:
    loaded = served.post("/load_lora_adapter", ADMIN, lora_name="s", lora_path="c").json()
    assert loaded["success"]
    assert loaded["loaded_adapters"]["s"] == "c"
    failed = served.post("/load_lora_adapter", ADMIN, lora_name="s", lora_path="c")
    assert (failed.status_code, failed.json()["success"]) == (400, False)
    assert "'s' is that of an adapter" in failed.json()["error_message"]
    assert served.post("/unload_lora_adapter", ADMIN, lora_name="s").json()["loaded_adapters"].keys() == {"a", "b"}


def test_an_adapter_that_is_unloaded_finishes_its_streams(served: Served) -> None:
    served.load("c", "c")
    whole = served.tokens("c", max_tokens=80)
    with served.stream("c", 80) as stream:
        found = next(stream)
        assert served.unload("c").status_code == 200
        found += [token for ids in stream for token in ids]
    assert found == whole
    assert served.names() == ["tiny", "a", "b"]


def test_adapters_and_streams_survive_the_engine(served: Served) -> None:
    """The next engine reads the adapters again, those that were loaded over HTTP, too."""
    served.load("c", "c")
    whole = {name: served.tokens(name, max_tokens=60) for name in ("a", "c")}
    (engine,) = processes.children(served.pid)
    with served.stream("a", 60) as of_a, served.stream("c", 60) as of_c:
        found = {"a": next(of_a), "c": next(of_c)}
        os.kill(engine, signal.SIGKILL)
        found["a"] += [token for ids in of_a for token in ids]
        found["c"] += [token for ids in of_c for token in ids]
    assert found == whole
    assert served.names() == ["tiny", "a", "b", "c"]
    assert served.tokens("c") == served.merged["c"]
    served.unload("c")


def test_metrics_and_server_info_show_adapters(served: Served) -> None:
    served.tokens("a")
    text = httpx.get(f"{served.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}).text
    (line,) = [line for line in text.splitlines() if line.startswith("vllm:lora_requests_info{")]
    assert 'max_lora="2"' in line
    found = {each["name"]: each for each in served.get("/server_info")["adapters"]}
    assert found["a"]["users"] == found["a"]["held"] == 0
