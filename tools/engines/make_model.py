"""Makes a Llama of random weights with a byte-level BPE tokenizer and a chat template: make_model OUT tiny|large.

Runs in the environment of transformers or of vLLM.
"""

from __future__ import annotations

import sys

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tools.engines.sizes import CONTEXT, HEADS, KV_HEADS, SIZES, SPREAD
from tools.engines.tokens import EOS, PAD, TEMPLATE, VOCAB, train


def main() -> None:
    out, size = sys.argv[1], SIZES[sys.argv[2]]
    tokenizer = train()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD, chat_template=TEMPLATE, model_max_length=CONTEXT
    ).save_pretrained(out)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=size.width,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.token_to_id(EOS),
        pad_token_id=0,
        initializer_range=SPREAD,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(eos_token_id=config.eos_token_id, pad_token_id=0)
    model.save_pretrained(out)


if __name__ == "__main__":
    main()
