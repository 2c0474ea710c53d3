"""Small tokenizers with the special tokens of model families, and chat templates that write turns as they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import AddedToken, normalizers

from tokenizer_makers import byte_fallback_bpe, byte_level_bpe, metaspace_bpe


@dataclass(frozen=True)
class Family:
    """A tokenizer and its chat template."""

    make: Callable[[], tokenizers.Tokenizer]
    special: Sequence[str]
    template: str
    bos: str = ""
    plain: Sequence[str] = ()
    """Added tokens that are not special: in messages, too, they are tokens."""
    undeclared: Sequence[str] = ()
    """Tokens of the template that the tokenizer does not declare special."""
    strips: bool = False
    """Special tokens take the space behind them."""
    normalizer: normalizers.Normalizer | None = None

    @property
    def control(self) -> list[str]:
        """Tokens that messages must not hold."""
        return [*self.special, *self.undeclared]

    def tokenizer(self, *, undeclared: bool = True) -> tokenizers.Tokenizer:
        backend = self.make()
        if self.normalizer is not None:
            backend.normalizer = self.normalizer
        backend.add_special_tokens([AddedToken(text, rstrip=self.strips, normalized=False) for text in self.special])
        others = [*self.plain, *(self.undeclared if undeclared else ())]
        backend.add_tokens([AddedToken(text, normalized=False) for text in others])
        return backend


FAMILIES = {
    "chatml": Family(
        byte_level_bpe,
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "<|im_start|>assistant\n",
    ),
    "qwen": Family(
        byte_level_bpe,
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>"],
        "{% for m in messages %}{% set text = m.content %}"
        "{% if m.role == 'assistant' and '</think>' in text %}"
        "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
        "{{ '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}{% endfor %}<|im_start|>assistant\n<think>\n",
        plain=["<think>", "</think>", "<tool_call>", "</tool_call>"],
        normalizer=normalizers.NFC(),
    ),
    "llama3": Family(
        byte_level_bpe,
        ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
        + [f"<|reserved_special_token_{number}|>" for number in range(12)],
        "{{ bos_token }}{% for m in messages %}"
        "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        bos="<|begin_of_text|>",
    ),
    "llama2": Family(
        byte_fallback_bpe,
        ["<s>", "</s>"],
        "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content | trim }} </s>"
        "{% else %}<s>[INST] {{ m.content | trim }} [/INST]{% endif %}{% endfor %}",
    ),
    "mistral": Family(
        metaspace_bpe,
        ["<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"],
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}</s>"
        "{% else %}[INST] {{ m.content }}[/INST]{% endif %}{% endfor %}",
        bos="<s>",
    ),
    "gemma": Family(
        byte_fallback_bpe,
        ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
        "{{ bos_token }}{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
        "<start_of_turn>{{ role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}<start_of_turn>model\n",
        bos="<bos>",
        normalizer=normalizers.Replace(" ", "▁"),
    ),
    "phi3": Family(
        byte_fallback_bpe,
        ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"],
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}<|assistant|>\n",
        strips=True,
    ),
    "deepseek": Family(
        byte_level_bpe,
        ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"],  # noqa: RUF001
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
        "{% set text = m.content.split('</think>')[-1] if '</think>' in m.content else m.content %}"
        "<｜Assistant｜>{{ text }}<｜end▁of▁sentence｜>{% else %}<｜User｜>{{ m.content }}{% endif %}{% endfor %}"  # noqa: RUF001
        "<｜Assistant｜></think>",  # noqa: RUF001
        bos="<｜begin▁of▁sentence｜>",  # noqa: RUF001
        plain=["<think>", "</think>"],
        undeclared=["<｜User｜>", "<｜Assistant｜>"],  # noqa: RUF001
    ),
    "cohere": Family(
        byte_level_bpe,
        ["<BOS_TOKEN>"],
        "{{ bos_token }}{% for m in messages %}<|START_OF_TURN_TOKEN|>"
        "{{ '<|CHATBOT_TOKEN|>' if m.role == 'assistant' else '<|USER_TOKEN|>' }}{{ m.content }}<|END_OF_TURN_TOKEN|>"
        "{% endfor %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        bos="<BOS_TOKEN>",
        undeclared=["<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"],
    ),
    "harmony": Family(
        byte_level_bpe,
        ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"],
        "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}"
        "<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant",
    ),
    "named": Family(
        byte_level_bpe,
        ["<|begin|>", "<|end|>"],
        "{% for m in messages %}{{ m.content }}{{ m.name }}{{ ' <|begin|>' if m.role == 'system' }}{% endfor %}",
    ),
}
