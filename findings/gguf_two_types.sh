#!/usr/bin/env bash
# gguf, llama.cpp's package for Python: it cannot read files of two types that llama.cpp writes.
#
# Version:  gguf 0.19.0; llama.cpp as in llama-cpp-python 0.3.36
# Expected: What `llama-quantize` offers can be read: Q1_0 (type 41) and Q2_0 (type 42).
# Seen:     Q1_0 has a name and a size, but `dequantize` raises NotImplementedError. For one tensor of Q2_0 the reader
#           refuses the whole file, its metadata too: "42 is not a valid GGMLQuantizationType". So these values can be
#           compared with llama.cpp's C alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check gguf==0.19.0
python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
    llama-cpp-python==0.3.36
tar xzf llama_cpp_python-0.3.36.tar.gz
header=llama_cpp_python-0.3.36/vendor/llama.cpp/ggml/include/ggml.h
grep -q 'GGML_TYPE_Q1_0 *= 41' $header
grep -q 'GGML_TYPE_Q2_0 *= 42' $header
env/bin/python - <<'PYTHON'
import gguf
import numpy as np

kind = gguf.GGMLQuantizationType.Q1_0
_, size = gguf.GGML_QUANT_SIZES[kind]
try:
    gguf.dequantize(np.zeros((1, size), dtype=np.uint8), kind)
    raise SystemExit("Q1_0 is dequantised now")
except NotImplementedError as error:
    print("as seen:", error)

writer = gguf.GGUFWriter("q2_0.gguf", "llama")
writer.add_tensor("w", np.zeros((1, 64), dtype=np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
data = bytearray(open("q2_0.gguf", "rb").read())
name = (1).to_bytes(8, "little") + b"w"
kind_at = data.index(name) + len(name) + 4 + 2 * 8  # behind the name: the number of dimensions, and two of them
assert data[kind_at : kind_at + 4] == bytes(4), "the type F32"
data[kind_at : kind_at + 4] = (42).to_bytes(4, "little")
open("q2_0.gguf", "wb").write(data)
try:
    gguf.GGUFReader("q2_0.gguf")
    raise SystemExit("Q2_0 is read now")
except ValueError as error:
    print("as seen:", error)
PYTHON
