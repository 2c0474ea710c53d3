"""Write a trained model as a Hugging Face checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from training.model import Qwen3
from training.specials import END, SPECIALS, TURN_END

CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\nTools:\n' }}"
    "{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '\n' if message['content'] or not loop.first else '' }}"
    "{{ '<tool_call>\n{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' }}"
    "{{ call['function']['arguments'] | tojson + '}\n</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_checkpoint(folder: Path, model: Qwen3, tokenizer: Tokenizer) -> None:
    """Write the configuration, the tokenizer, the chat template and the weights in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    end, turn_end = (tokenizer.token_to_id(token) for token in (END, TURN_END))
    shape = model.shape
    files: dict[str, dict[str, object]] = {
        "config.json": {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": shape.vocab_size,
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.intermediate_size,
            "num_hidden_layers": shape.num_hidden_layers,
            "num_attention_heads": shape.num_attention_heads,
            "num_key_value_heads": shape.num_key_value_heads,
            "head_dim": shape.head_dim,
            "attention_bias": True,
            "hidden_act": "silu",
            "rms_norm_eps": shape.rms_norm_eps,
            "max_position_embeddings": shape.max_position_embeddings,
            "rope_theta": shape.rope_theta,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "eos_token_id": [end, turn_end],
        },
        "generation_config.json": {"eos_token_id": [end, turn_end], "temperature": 0.0, "do_sample": False},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": TURN_END,
            "additional_special_tokens": list(SPECIALS),
            "model_max_length": shape.max_position_embeddings,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    weights = {f"model.{name}": weight.to(torch.bfloat16).contiguous() for name, weight in model.state_dict().items()}
    file = folder / "model.safetensors"
    save_file(weights, file, metadata={"format": "pt"})
    file.chmod(0o644)
