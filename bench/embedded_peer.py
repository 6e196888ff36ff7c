"""transformers on the CPU with the built-in model's weights, measured in turn with the embedded engine.

usage: PYTHONPATH=src:. python -m bench.embedded_peer      (in an environment with torch and transformers)
"""

from __future__ import annotations

import time

import torch
from transformers import GenerationConfig, LlamaForCausalLM

from bench.embedded import make, request, throughput
from hangup.engine.options import EngineOptions
from hangup.engine.weights import BUILT_IN

TOKENS, PROMPT, ROUNDS = 128, 16, 3


def main() -> None:
    theirs = LlamaForCausalLM.from_pretrained(BUILT_IN, dtype=torch.float32).eval()
    settings = GenerationConfig(
        max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    for streams in (1, 8):
        engine = make(EngineOptions(slots=streams))
        prompts = torch.tensor([request(PROMPT, TOKENS, 1024, seed).prompt for seed in range(streams)])
        ours, other = [], []
        for _ in range(ROUNDS):
            ours.append(throughput(engine, streams, PROMPT, TOKENS)["tokens_per_s"])
            began = time.perf_counter()
            with torch.inference_mode():
                theirs.generate(prompts, generation_config=settings)
            other.append(streams * TOKENS / (time.perf_counter() - began))
        threads = torch.get_num_threads()
        print(f"{streams} streams: hangup {max(ours):.0f} tokens/s, transformers {max(other):.0f} ({threads} threads)")


if __name__ == "__main__":
    main()
