"""A tiny Llama of random weights with a byte-level BPE tokenizer and a chat template: make_model.py OUT. Runs in the
environment of transformers."""

from __future__ import annotations

import sys

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tools.engines.tokens import EOS, PAD, TEMPLATE, VOCAB, train

HIDDEN, LAYERS, CONTEXT = 256, 4, 32768


def main() -> None:
    out = sys.argv[1]
    tokenizer = train()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD, chat_template=TEMPLATE, model_max_length=CONTEXT
    ).save_pretrained(out)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN * 3,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.token_to_id(EOS),
        pad_token_id=0,
        initializer_range=0.05,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(eos_token_id=config.eos_token_id, pad_token_id=0)
    model.save_pretrained(out)


if __name__ == "__main__":
    main()
