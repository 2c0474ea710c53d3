"""A checkpoint's tokenizer is read as transformers reads it, or refused with a reason."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path

import pytest
import transformers
from tokenizers.processors import TemplateProcessing

from sluice.text.chat_template import ChatTemplate
from sluice.text.tokenizer import Tokenizer, TokenizerError
from sluice.text.tokenizer_files import load_tokenizer
from tokenizer_makers import byte_fallback_bpe, byte_level_bpe, byte_tokenizer

CHATML = (
    "{% for message in messages %}\n"
    "    {% if message.role not in ['user', 'assistant', 'system'] %}\n"
    "        {{ raise_exception('no role ' + message.role) }}\n"
    "    {% endif %}\n"
    "    {{ '<' + message.role + '> ' + message.content | trim + eos_token }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
TALK = [{"role": "user", "content": " Is that <b>né</b>? "}, {"role": "assistant", "content": "yes"}]


def write(folder: Path, **files: object) -> Path:
    """Write a byte-level tokenizer and the given JSON files (or a text, for `chat_template_jinja`) to a folder."""
    byte_level_bpe().save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        if isinstance(content, str):
            (folder / name.replace("_jinja", ".jinja")).write_text(content, encoding="utf-8")
        else:
            (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def encode_chat(tokenizer: Tokenizer, talk: list[dict[str, str]]) -> list[int]:
    """The ids of a conversation."""
    return tokenizer.encode(asyncio.run(tokenizer.render_chat(talk)), add_special_tokens=False)


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": True}, {"add_bos_token": True, "add_eos_token": True}])
@pytest.mark.parametrize("has_processor", [True, False])
def test_bos_and_eos_are_those_of_transformers(tmp_path: Path, flags: dict[str, bool], has_processor: bool) -> None:
    """A missing or doubled BOS changes every answer of a model, but not the decoded text."""
    backend = byte_fallback_bpe()
    if has_processor:
        backend.post_processor = TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 1)])
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", **flags
    )
    reference.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text()) | flags
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours, theirs = load_tokenizer(tmp_path), transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in ("the water", " two  spaces", "水門", "<s>a</s>"):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)


def test_false_flags_leave_the_post_processor_alone(tmp_path: Path) -> None:
    """Qwen3-Embedding's tokenizer.json ends texts with a token, and its add_bos_token is false. Without that token the
    embeddings are those of another position."""
    backend = byte_fallback_bpe()
    backend.post_processor = TemplateProcessing(single=["$A", "</s>"], special_tokens=[("</s>", 2)])
    backend.save(str(tmp_path / "tokenizer.json"))
    settings = {"add_bos_token": False, "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours, theirs = load_tokenizer(tmp_path), transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ours.encode("the water") == theirs.encode("the water")
    assert ours.encode("the water")[-1] == 2


@pytest.mark.parametrize("template", [CHATML, "{{ messages | tojson(indent=2) }}{% generation %}x{% endgeneration %}"])
def test_chats_are_those_of_transformers(tmp_path: Path, template: str) -> None:
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(), eos_token="<|end|>", chat_template=template
    )
    reference.save_pretrained(tmp_path)
    theirs = reference.apply_chat_template(TALK, add_generation_prompt=True, return_dict=False)
    assert encode_chat(load_tokenizer(tmp_path), TALK) == theirs


def test_the_template_file_takes_precedence_over_the_config(tmp_path: Path) -> None:
    folder = write(tmp_path, chat_template_jinja="from the file", tokenizer_config={"chat_template": "from config"})
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(encode_chat(tokenizer, TALK)) == "from the file"


def test_of_several_templates_the_default_is_used(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    tokenizer = load_tokenizer(write(tmp_path, tokenizer_config={"chat_template": named}))
    assert tokenizer.decode(encode_chat(tokenizer, TALK)) == "plain"


def test_messages_that_the_template_refuses(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, chat_template_jinja=CHATML, tokenizer_config={"eos_token": "<|end|>"}))
    with pytest.raises(TokenizerError, match="refuses the messages: no role owl"):
        encode_chat(tokenizer, [{"role": "owl", "content": ""}])


@pytest.mark.parametrize("escape", ["messages.__class__.__mro__", "messages.append(1)", "''.join.__globals__"])
def test_a_template_cannot_leave_its_sandbox(tmp_path: Path, escape: str) -> None:
    """A template is a program that was downloaded."""
    tokenizer = load_tokenizer(write(tmp_path, chat_template_jinja="{{ " + escape + ".x.y }}"))
    with pytest.raises(TokenizerError, match="refuses the messages"):
        encode_chat(tokenizer, TALK)


def test_the_process_of_the_template_is_started_only_for_chats(tmp_path: Path) -> None:
    """The first chat must not wait for it; a library without chats must not start it."""
    folder = write(tmp_path, chat_template_jinja="text")
    with closing(load_tokenizer(folder)) as tokenizer:
        assert tokenizer._chat_template is not None
        process = tokenizer._chat_template._process
        assert process is not None
        assert process.is_running
        assert encode_chat(tokenizer, TALK) == tokenizer.encode("text")
        assert tokenizer._chat_template._process is process
    assert not load_tokenizer(folder, chat=False).has_chat_template


def test_without_a_template_there_is_no_chat(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path))
    assert not tokenizer.has_chat_template
    with pytest.raises(TokenizerError, match="no chat template"):
        encode_chat(tokenizer, TALK)


@pytest.mark.parametrize(
    ("declared", "ids"), [({"eos_token_id": 7}, {7, 1}), ({"eos_token_id": [7, 8]}, {7, 8, 1}), ({}, {1})]
)
def test_every_declared_end_of_sequence_counts(tmp_path: Path, declared: dict[str, object], ids: set[int]) -> None:
    """A chat model with two end tokens must stop at either."""
    folder = write(tmp_path, generation_config=declared, tokenizer_config={"eos_token": {"content": "<|end|>"}})
    assert load_tokenizer(folder).eos_token_ids == ids


def test_tokens_that_are_only_in_the_config(tmp_path: Path) -> None:
    """Fine-tuned models add chat markers only in `tokenizer_config.json`; as text they would be several tokens."""
    first = byte_level_bpe().get_vocab_size()
    entry = {"content": "<|turn|>", "special": True, "normalized": False}
    tokenizer = load_tokenizer(write(tmp_path, tokenizer_config={"added_tokens_decoder": {str(first): entry}}))
    assert tokenizer.encode("a<|turn|>")[-1] == first
    assert tokenizer.decode([first]) == ""


def test_a_token_with_two_ids_is_refused(tmp_path: Path) -> None:
    entry = {"content": "<|turn|>", "special": True}
    with pytest.raises(TokenizerError, match=r"gives '<\|turn\|>' the id 9999"):
        load_tokenizer(write(tmp_path, tokenizer_config={"added_tokens_decoder": {"9999": entry}}))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer.json", "{}", "cannot be read"),
        ("tokenizer_config.json", "{", "is not JSON"),
        ("generation_config.json", "[]", "must hold a JSON object, got list"),
        ("generation_config.json", '{"eos_token_id": [[]]}', "eos_token_id must be a token id or a list of them"),
        ("tokenizer_config.json", '{"bos_token": "\\ud800"}', "is not JSON: .* surrogates not allowed"),
        (
            "tokenizer_config.json",
            '{"additional_special_tokens": 0.5}',
            "additional_special_tokens: Expected .* got `float`",
        ),
        (
            "tokenizer_config.json",
            '{"added_tokens_decoder": {"x": {"content": "a"}}}',
            "added_tokens_decoder: Expected `int`",
        ),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"1": {"content": 7}}}', r"Expected `str`, got `int`"),
        ("chat_template.jinja", "{% if %}", "chat template cannot be read"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: str, said: str) -> None:
    (write(tmp_path) / name).write_text(content)
    with pytest.raises(TokenizerError, match=said):
        load_tokenizer(tmp_path)


def test_text_must_be_unicode() -> None:
    """JSON may contain half of a surrogate pair, which has no UTF-8 form."""
    with pytest.raises(TokenizerError, match="surrogate"):
        Tokenizer(byte_tokenizer()).encode("a\ud83d")
    tokenizer = Tokenizer(byte_tokenizer(), chat_template=ChatTemplate("", {}))
    with pytest.raises(TokenizerError, match=r"valid Unicode, got the unpaired surrogate '\\ud83d' at 1"):
        encode_chat(tokenizer, [{"role": "user", "content": "a\ud83d"}])


def test_truncation_in_the_file_is_ignored() -> None:
    """Files saved after training may configure truncation; prompts must never be truncated silently."""
    backend = byte_tokenizer()
    backend.enable_truncation(4)
    backend.enable_padding(length=10)
    assert Tokenizer(backend).encode("abcdef") == list(b"abcdef")
