"""Makes a Llama of random weights as a GGUF file: make_gguf OUT.gguf tiny|large. Runs in llama.cpp's environment, without
torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import gguf
import numpy as np

from tools.engines.sizes import CONTEXT, HEADS, KV_HEADS, SIZES, SPREAD, Size
from tools.engines.tokens import EOS, PAD, TEMPLATE, VOCAB, train


def main() -> None:
    size = SIZES[sys.argv[2]]
    writer = gguf.GGUFWriter(sys.argv[1], "llama")
    writer.add_name("random-llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(size.width)
    writer.add_block_count(size.layers)
    writer.add_feed_forward_length(size.feed_forward)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(size.width // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCAB)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    add_tokenizer(writer)
    rng = np.random.default_rng(0)
    for name, shape in tensors(size):
        values = np.ones(shape, np.float32) if len(shape) == 1 else rng.normal(0, SPREAD, shape).astype(np.float16)
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(size: Size) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, wide, keys = size.width, size.feed_forward, size.width * KV_HEADS // HEADS
    yield "token_embd.weight", (VOCAB, width)
    yield "output.weight", (VOCAB, width)
    yield "output_norm.weight", (width,)
    for layer in range(size.layers):
        shapes: dict[str, tuple[int, ...]] = {
            "attn_norm": (width,),
            "attn_q": (width, width),
            "attn_k": (keys, width),
            "attn_v": (keys, width),
            "attn_output": (width, width),
            "ffn_norm": (width,),
            "ffn_gate": (wide, width),
            "ffn_up": (wide, width),
            "ffn_down": (width, wide),
        }
        for name, shape in shapes.items():
            yield f"blk.{layer}.{name}.weight", shape


def add_tokenizer(writer: Any) -> None:
    trained = json.loads(train().to_str())
    vocabulary: dict[str, int] = trained["model"]["vocab"]
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    special = {token["content"] for token in trained["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in trained["model"]["merges"]])
    writer.add_eos_token_id(vocabulary[EOS])
    writer.add_pad_token_id(vocabulary[PAD])
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


if __name__ == "__main__":
    main()
