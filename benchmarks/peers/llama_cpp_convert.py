"""Run llama.cpp's own converter on a checkpoint whose tokenizer it does not know.

    python llama_cpp_convert.py SOURCE CHECKPOINT --outfile FILE --outtype bf16

SOURCE is a checkout of llama.cpp. The converter recognises how a tokenizer splits text by a fingerprint of the whole
vocabulary, and does not know a vocabulary learned here. `benchmarks/make_checkpoint.py` splits as GPT-2 does.
"""

from __future__ import annotations

import sys


def main() -> None:
    source = sys.argv.pop(1)
    sys.path.insert(0, source)
    import convert_hf_to_gguf
    from conversion.base import TextModel

    TextModel.get_vocab_base_pre = lambda model, tokenizer: "gpt-2"
    convert_hf_to_gguf.main()


if __name__ == "__main__":
    main()
