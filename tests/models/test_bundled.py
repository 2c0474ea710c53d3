"""The checkpoint of the bundled model. tests/recall measures what it can do."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from paged_model import chunked_logits
from sluice.models.hub import BUNDLED
from sluice.models.loader import load_model
from training.model import Qwen3, Shape
from training.tokenizer import texts, train_tokenizer
from training.words import is_held_out

MOST_BYTES = 20_000_000


def test_is_small_and_complete() -> None:
    assert sum(path.stat().st_size for path in BUNDLED.iterdir()) <= MOST_BYTES
    config = json.loads((BUNDLED / "config.json").read_text())
    assert config["max_position_embeddings"] >= 4096
    assert (BUNDLED / "README.md").read_text().startswith("# ")


def test_loads_here_as_in_transformers() -> None:
    model, spec = load_model(BUNDLED, dtype="float32", device=torch.device("cpu"), progress=False)
    reference = transformers.AutoModelForCausalLM.from_pretrained(BUNDLED, dtype=torch.float32)
    assert set(spec.eos_token_ids) == set(reference.generation_config.eos_token_id)
    assert spec.max_model_len == reference.config.max_position_embeddings
    tokens = list(range(40, 140))
    ours = chunked_logits(model, [tokens], page_size=8, seed=0)[0]
    with torch.inference_mode():
        theirs = reference(torch.tensor([tokens])).logits[0]
    assert float((ours - theirs).abs().max()) < 1e-3


def test_is_the_network_that_was_trained() -> None:
    """The forward pass of the training equals the served one, so the measured figures are those of this model."""
    reference = transformers.AutoModelForCausalLM.from_pretrained(BUNDLED, dtype=torch.float32)
    trained = Qwen3(Shape(reference.config.vocab_size))
    weights = {name.removeprefix("model."): value for name, value in reference.state_dict().items()}
    weights.pop("lm_head.weight")
    trained.load_state_dict(weights)
    tokens = torch.arange(40, 140)[None]
    with torch.inference_mode():
        assert torch.allclose(trained.logits(trained(tokens)), reference(tokens).logits, atol=1e-3)


@pytest.mark.slow
def test_its_tokenizer_is_the_one_the_script_makes() -> None:
    """The generator writes the training text from the seed."""
    assert train_tokenizer(texts(1)).to_str() == Tokenizer.from_file(str(BUNDLED / "tokenizer.json")).to_str()


@pytest.mark.slow
def test_the_training_text_holds_no_name_that_recall_is_measured_with() -> None:
    """Every made-up name among the capitalised words is one of the names for training."""
    known = {word.strip(".,?!\"'").removesuffix("'s") for text in texts(1) for word in text.split()}
    names = {word for word in known if word.istitle() and word.endswith(("drick", "bert", "minster", "worth", "combe"))}
    assert len(names) > 100
    assert not {name for name in names if is_held_out(name)}


@pytest.mark.parametrize(
    "text", ["The sluice gate.", "Grüße, 水門 🌊", "\x00\t  \n two  spaces ", "<|im_end|>", "4711"]
)
def test_tokenizer_keeps_any_text(text: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(BUNDLED)
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_chat_template() -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(BUNDLED)
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
