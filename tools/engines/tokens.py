"""The models' byte-level BPE tokenizer and chat template. Runs in the engines' environments."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 4096
PAD, EOS = "<|endoftext|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def texts() -> Iterator[str]:
    """Yield text that is always at hand: Python's own library."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:250]:
        yield path.read_text(encoding="utf-8", errors="ignore")


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=[PAD, "<|im_start|>", EOS], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer
