"""The claims of docs/security.md that can be read off the code or tried from outside. The page names the tests of the
others."""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
from pathlib import Path

import pytest
import torch

import tiny_models
from processes import free_port
from serve_process import announced, errors_of, server, shadow
from serving import serving
from sluice.http.edge.listening import exposure_warning
from sluice.models.hub import WANTED
from sluice.models.loader import load_model
from sluice.process.wire import WireError, decode

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "src" / "sluice").rglob("*.py"))
RUNS_CODE = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
EVALUATES = {"eval", "exec", "compile", "__import__"}


def imported(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}


def calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_nothing_is_read_that_could_run() -> None:
    """To unpickle data that others wrote is to run code that they wrote."""
    for file in FILES:
        tree = ast.parse(file.read_text())
        assert {name.partition(".")[0] for name in imported(tree)}.isdisjoint(RUNS_CODE), file
        for call in calls(tree):
            called, place = ast.unparse(call.func), f"{file.relative_to(ROOT)}:{call.lineno}"
            assert called not in EVALUATES, f"{place}: {called}"
            assert called not in ("torch.load", "np.load", "numpy.load", "yaml.load"), f"{place}: {called}"
            assert not re.search(r"(send|recv)_pyobj$", called), f"{place}: {called}"
            for keyword in call.keywords:
                assert keyword.arg not in ("trust_remote_code", "allow_pickle"), f"{place}: {keyword.arg}"
                value = keyword.value
                shell = keyword.arg == "shell" and not (isinstance(value, ast.Constant) and not value.value)
                assert not shell, f"{place}: a shell"


def test_a_pickle_on_the_line_is_refused_unread() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str, ...]]:
            return os.putenv, ("SLUICE_BOMB", "exploded")

    with pytest.raises(WireError):
        decode(pickle.dumps(Bomb()))
    assert os.environ.get("SLUICE_BOMB") is None


def test_the_line_to_the_engine_is_no_network() -> None:
    """An engine that listens on a port takes requests from every user of the machine. KV events, which are read only,
    are published on one where that is asked for."""
    published = ROOT / "src" / "sluice" / "config" / "kv_events.py"
    schemes = {
        scheme
        for file in FILES
        if file != published and "://" in file.read_text()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for scheme in re.findall(r"\b(tcp|ipc|inproc|udp|pgm|ws)://", node.value)
    }
    assert schemes == {"ipc"}


CODE = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nclass Config: pass\nclass Model: pass\n"


@pytest.mark.parametrize("implementation", ["native", "transformers", "auto"])
def test_code_in_a_checkpoint_never_runs(implementation: str, tmp_path: Path) -> None:
    """Neither is it needed by an architecture that is known without it, nor does it help an unknown one."""
    tiny_models.llama().save_pretrained(tmp_path)
    for name in ("configuration_own.py", "modeling_own.py", "tokenization_own.py", "__init__.py"):
        (tmp_path / name).write_text(CODE)
    config = json.loads((tmp_path / "config.json").read_text())
    maps = {"AutoConfig": "configuration_own.Config", "AutoModelForCausalLM": "modeling_own.Model"}
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": maps}))
    model, _ = load_model(
        tmp_path, dtype="float32", device=torch.device("cpu"), progress=False, implementation=implementation
    )
    assert model.spec.architecture == "LlamaForCausalLM"
    unknown = config | {"auto_map": maps, "model_type": "own", "architectures": ["OwnForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(unknown))
    with pytest.raises(ValueError, match="OwnForCausalLM"):
        load_model(tmp_path, dtype="float32", device=torch.device("cpu"), progress=False, implementation=implementation)
    assert not (tmp_path / "ran").exists()


def test_code_in_the_working_directory_never_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkpoint's folder, `sluice serve .` would run a file of the checkpoint with a module's name, such as
    json.py, in the engine, or in the process that renders chat templates."""
    command = shadow(free_port(), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    (tmp_path / "json.py").write_text("import pathlib; pathlib.Path(__file__).with_name('ran').touch()")
    monkeypatch.chdir(tmp_path)
    with server("-P", *command) as process:  # without the working directory, as the command `sluice` is
        assert "/v1/chat/completions" in announced(process)
    assert not (tmp_path / "ran").exists()


def test_no_code_is_downloaded() -> None:
    data = ("json", "safetensors", "jinja", "merges.txt", ".model")
    assert not [pattern for pattern in WANTED if not pattern.endswith(data)]


def test_a_safetensors_file_that_lies_is_refused(tmp_path: Path) -> None:
    """Its header says where each tensor lies; one that points outside must not be read."""
    tiny_models.llama().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    first = next(name for name in header if name != "__metadata__")
    header[first]["data_offsets"][1] += 1 << 40
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        load_model(tmp_path, dtype="float32", device=torch.device("cpu"), progress=False)


async def test_templates_in_requests_are_refused() -> None:
    """A template of a client's own would run in the server; vLLM and others take one from a field."""
    async with serving() as server:
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
        for field, value, param in (
            ("chat_template", "{{ messages }}", "chat_template"),
            ("chat_template_kwargs", {"chat_template": "{{ messages }}"}, "chat_template_kwargs.chat_template"),
        ):
            answer = await server.post("/v1/chat/completions", **body, **{field: value})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == param


async def test_what_looks_like_a_template_in_a_message_is_text() -> None:
    async with serving() as server:
        said = "{{ 7 * 191 }}{% raw %}"
        body = {"messages": [{"role": "user", "content": said}], "max_tokens": 1}
        answer = await server.post("/v1/chat/completions", **body)
        assert answer.json()["usage"]["prompt_tokens"] == len(f"user: {said}\n")


async def test_no_other_site_may_call_from_a_browser() -> None:
    """A page anywhere in the web could otherwise use the server of the person who looks at it."""
    async with serving() as server:
        origin = {"origin": "https://elsewhere.example"}
        asked = origin | {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
        preflight = await server.http.options("/v1/completions", headers=asked)
        answers = [preflight, await server.http.get("/v1/models", headers=origin)]
        assert preflight.status_code == 405
        for answer in answers:
            assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_no_pages_that_describe_the_server() -> None:
    """Pages that frameworks add load scripts from elsewhere."""
    async with serving() as server:
        for path in ("/redoc", "/docs/oauth2-redirect"):
            assert (await server.http.get(path)).status_code == 404


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.7", "fe80::1%eth0"])
def test_an_open_door_is_pointed_out(address: str) -> None:
    warning = exposure_warning(address, has_key=False)
    assert warning is not None
    assert address in warning
    assert exposure_warning(address, has_key=True) is None


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1"])
def test_loopback_is_no_open_door(address: str) -> None:
    assert exposure_warning(address, has_key=False) is None


def test_a_server_says_that_its_door_is_open(tmp_path: Path) -> None:
    with server(*shadow(0, tmp_path, host="0.0.0.0")) as process:
        announced(process)
        process.terminate()
        errors = errors_of(process)
    assert errors.count("\n") == 1
    assert "WARNING sluice.server: listening on 0.0.0.0 without an API key" in errors


def test_the_default_is_this_machine_only(tmp_path: Path) -> None:
    with server(*shadow(0, tmp_path)) as process:
        announced(process)
        listening = listeners_of(process.pid)
        process.terminate()
        errors = errors_of(process)
    assert listening == {"0100007F"}, "127.0.0.1, as the kernel writes it"
    assert errors == ""


def listeners_of(pid: int) -> set[str]:
    """Addresses, in hexadecimal, on which a process and its children listen for TCP."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    inodes: set[str] = set()
    for each in (str(pid), *children):
        for link in Path(f"/proc/{each}/fd").iterdir():
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
            if found:
                inodes.add(found[1])
    listen = "0A"
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == listen and row[9] in inodes}


def test_the_page_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 5
    for file, test in named:
        text = (ROOT / file).read_text()
        assert not test or f"def {test}(" in text, f"{file}::{test}"
