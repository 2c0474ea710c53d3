"""A checkpoint's chat templates are found in every place and spelling, and the one for tools is used with tools."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from sluice.text.chat_template import RenderOptions
from sluice.text.tokenizer import TokenizerError
from sluice.text.tokenizer_files import load_tokenizer
from tokenizer_makers import byte_level_bpe

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
BY_NAME = {"default": "plain", "tool_use": "tools"}
AS_LIST = [{"name": name, "template": source} for name, source in BY_NAME.items()]


def write(folder: Path, files: Mapping[str, object]) -> Path:
    """Write a tokenizer and other files: a text as it is, and anything else as JSON."""
    byte_level_bpe().save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


def rendered(folder: Path) -> tuple[str, str]:
    """A chat without tools, and one with them."""

    async def both() -> tuple[str, str]:
        with closing(load_tokenizer(folder)) as tokenizer:
            talk = [{"role": "user", "content": "hi"}]
            return await tokenizer.render_chat(talk), await tokenizer.render_chat(
                talk, RenderOptions({"tools": [TOOL]})
            )

    return asyncio.run(both())


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": {"chat_template": AS_LIST}},
        {"tokenizer_config.json": {"chat_template": BY_NAME}},
        {"chat_template.json": {"chat_template": BY_NAME}},
        {"chat_template.json": {"chat_template": AS_LIST}},
        {"chat_template.jinja": "plain", "additional_chat_templates/tool_use.jinja": "tools"},
        {
            "tokenizer_config.json": {"chat_template": "plain"},
            "additional_chat_templates/tool_use.jinja": "tools",
        },
    ],
)
def test_with_tools_the_template_for_tools_is_used(tmp_path: Path, files: Mapping[str, object]) -> None:
    assert rendered(write(tmp_path, files)) == ("plain", "tools")


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.json": {"chat_template": "alone"}},
        {"tokenizer_config.json": {"chat_template": {"tool_use": "alone"}}},
        {"tokenizer_config.json": {"chat_template": [{"name": "chat", "template": "alone"}]}},
        {"tokenizer_config.json": {"chat_template": "alone"}, "chat_template.json": {"chat_template": "old"}},
        {"tokenizer_config.json": {"chat_template": BY_NAME}, "chat_template.jinja": "alone"},
    ],
)
def test_one_template_is_used_for_all_chats(tmp_path: Path, files: Mapping[str, object]) -> None:
    assert rendered(write(tmp_path, files)) == ("alone", "alone")


def test_templates_under_other_names_alone_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing says which of them is for a usual chat."""
    folder = write(tmp_path, {"tokenizer_config.json": {"chat_template": {"rag": "a", "summary": "b"}}})
    with caplog.at_level(logging.WARNING):
        assert not load_tokenizer(folder).has_chat_template
    assert "rag, summary" in caplog.text


@pytest.mark.parametrize(
    ("configured", "message"),
    [
        ([{"name": "default"}], r"chat_template\[0\] must be an object with the texts name and template, got name"),
        ([*AS_LIST, "x"], r"chat_template\[2\] must be an object .* got str"),
        ([{"name": "default", "template": None}], r"chat_template\[0\] must"),
        ({"default": 3}, "chat_template.default must be a text, got int"),
        (7, "chat_template must be a text, or templates by name as an object or a list, got int"),
    ],
)
@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.json"])
def test_a_broken_entry_is_named(tmp_path: Path, configured: object, message: str, file: str) -> None:
    folder = write(tmp_path, {file: {"chat_template": configured}})
    with pytest.raises(TokenizerError, match=f"{file}: {message}"):
        load_tokenizer(folder)


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(TokenizerError, match=r"chat_template\.json"):
        load_tokenizer(write(tmp_path, {"chat_template.json": content}))
