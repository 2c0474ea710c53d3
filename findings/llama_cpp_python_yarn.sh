#!/usr/bin/env bash
# llama-cpp-python: `Llama` ignores the betas of YaRN that a GGUF file has.
#
# Version:  llama-cpp-python 0.3.36
# Expected: without options, a model is computed as its file says (`rope.scaling.yarn_beta_fast`, `yarn_beta_slow`), as
#           by the programs of llama.cpp, whose own defaults of these options are -1, "from the model".
# Seen:     `Llama` always passes 32 and 1. The options of the magnitude and the extrapolation are described as from the
#           model if negative, the betas are not. Files of Ministral 3 have 32 and 1 themselves, so nothing shows there. A
#           tiny random one with betas of 8 and 0.5 has logits that are up to 5.9 from those of transformers (their standard
#           deviation is 1.4); with yarn_beta_fast=-1.0 and yarn_beta_slow=-1.0 they are equal to 1e-5.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
    llama-cpp-python==0.3.36
tar xzf llama_cpp_python-0.3.36.tar.gz --strip-components=1
python3 - <<'PYTHON'
import ast
import re
from pathlib import Path

module = ast.parse(Path("llama_cpp/llama.py").read_text())
cls = next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Llama")
init = next(node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
options = dict(zip((each.arg for each in init.args.kwonlyargs), init.args.kw_defaults, strict=True))
wrapped = {name: ast.literal_eval(options[name]) for name in ("yarn_beta_fast", "yarn_beta_slow")}
sources = Path("vendor/llama.cpp/src/llama-context.cpp").read_text()
plain = {name: float(re.search(rf"/\*\.{name} *=\*/ (-?[\d.]+)f", sources)[1]) for name in wrapped}
reads = "params.yarn_beta_fast   >= 0.0f ? params.yarn_beta_fast   : hparams.yarn_beta_fast"
assert reads in sources, "llama.cpp chooses in another way now"
assert plain == {"yarn_beta_fast": -1.0, "yarn_beta_slow": -1.0}, plain
assert wrapped == {"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0}, wrapped
print(f"as seen: llama.cpp has {plain} by default, and Llama passes {wrapped}")
PYTHON
