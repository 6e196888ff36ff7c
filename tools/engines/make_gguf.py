"""The same model as a GGUF file: make_gguf.py DIR OUT.gguf. Runs in the transformers environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "model.norm.weight": "output_norm.weight",
}


def main() -> None:
    source = Path(sys.argv[1])
    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(sys.argv[2], "llama")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_name("tiny-random-llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    add_tokenizer(writer, source)
    for key, tensor in load_file(source / "model.safetensors").items():
        name, heads_of = name_of(key), {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads}
        values = tensor.to(torch.float32).numpy()
        for part, count in heads_of.items():
            if part in key:  # GGUF wants the halves of each head's rotation interleaved
                values = values.reshape(count, 2, values.shape[0] // count // 2, -1).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(name, values.astype(np.float16 if values.ndim > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def name_of(key: str) -> str:
    if key in WHOLE:
        return WHOLE[key]
    _, _, layer, rest = key.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def add_tokenizer(writer: Any, source: Path) -> None:
    told = json.loads((source / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = told["model"]["vocab"]
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    special = {token["content"] for token in told["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in told["model"]["merges"]])
    writer.add_eos_token_id(vocabulary["<|im_end|>"])
    writer.add_pad_token_id(vocabulary["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((source / "chat_template.jinja").read_text())


if __name__ == "__main__":
    main()
