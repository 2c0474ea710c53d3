"""`sluice serve Qwen/Qwen3-0.6B`, with the files that the hub has for it: their names, and tiny sizes."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

import tiny_models
from hub_server import Files, running_hub
from processes import free_port
from random_checkpoint import CHAT_TEMPLATE
from serve_process import announced, errors_of, server
from sluice import cli
from tokenizer_makers import byte_tokenizer

ID = "Qwen/Qwen3-0.6B"
NAMES = (
    *(".gitattributes", "LICENSE", "README.md", "config.json", "generation_config.json", "merges.txt"),
    *("model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.json"),
)
"""The files of the repository, as its page lists them."""


def files(folder: Path) -> Files:
    tiny_models.qwen3().save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    return {name: (folder / name).read_bytes() if (folder / name).exists() else b"{}" for name in NAMES}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_hub_id_is_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The one line of README: it downloads, loads and answers; and what was downloaded is listed."""
    cache = tmp_path / "cache"
    source = tmp_path / "source"
    source.mkdir()
    repository = files(source)
    with running_hub({ID: repository}) as hub:
        environment = {"HF_ENDPOINT": hub, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "0"}
        options = ("--port", str(free_port()), "--max-total-tokens", "256")
        with server("-m", "sluice", "serve", ID, *options, **environment) as process:
            command = announced(process)
            url = command.split()[2]
            body = {"model": ID, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
            request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=30) as response:
                answer = json.load(response)
            process.terminate()
            assert "Traceback" not in errors_of(process)
    assert answer["model"] == ID
    assert answer["usage"]["completion_tokens"] == 4
    downloaded = {path.name for path in cache.glob("models--*/snapshots/*/*")}
    assert downloaded == {name for name in NAMES if name.endswith((".json", ".safetensors")) or name == "merges.txt"}
    assert cli.main(["models", "--download-dir", str(cache)]) == 0
    assert f"serve {ID} --download-dir {cache}" in capsys.readouterr().out
