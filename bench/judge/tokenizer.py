"""A tokenizer that needs no download: one token per byte. The judges only measure prompts with it."""

from __future__ import annotations

import json
from pathlib import Path

END = "<|endoftext|>"


def make(folder: Path) -> Path:
    """Write the files that transformers expects; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {symbol: id for id, symbol in enumerate(_byte_symbols())}
    vocabulary[END] = len(vocabulary)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    added = {"id": vocabulary[END], "content": END, "special": True}
    added |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "fuse_unk": False, "byte_fallback": False},
    }
    template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END, "bos_token": END}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template, "model_max_length": 32768}))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": len(vocabulary)}))
    return folder


def _byte_symbols() -> list[str]:
    """Return the printable characters that stand for the 256 bytes in byte-level vocabularies."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    symbols, next_free = [], 256
    for byte in range(256):
        if byte in printable:
            symbols.append(chr(byte))
        else:
            symbols.append(chr(next_free))
            next_free += 1
    return symbols
