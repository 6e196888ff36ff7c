"""Loads the tokenizer (tokenizer.json) and the chat template of a model directory, with the `tokenizers` library."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as Loaded
from tokenizers.decoders import DecodeStream

from hangup.engine.tokenizer import TextDecoder
from hangup.errors import ConfigError

_PLAIN_CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


class HfTokenizer:
    def __init__(self, folder: Path) -> None:
        try:
            self._loaded = Loaded.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises nothing more precise
            raise ConfigError([f"model: cannot read {folder}/tokenizer.json: {error}"]) from None
        path = folder / "tokenizer_config.json"
        self._config = json.loads(path.read_bytes()) if path.exists() else {}
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(self._config.get("chat_template") or _PLAIN_CHAT)

    def encode(self, text: str) -> list[int]:
        special = not text.startswith(self._special("bos_token") or "\0")  # the chat template has added it already
        return list(self._loaded.encode(text, add_special_tokens=special).ids)

    def decoder(self) -> TextDecoder:
        return _Stream(self._loaded)

    def token_text(self, token: int) -> str:
        return str(self._loaded.decode([token], skip_special_tokens=False))

    def chat(self, messages: Iterable[tuple[str, str]]) -> str:
        rows = [{"role": role, "content": content} for role, content in messages]
        names = {name: self._special(name) for name in ("bos_token", "eos_token")}
        return str(self._template.render(messages=rows, add_generation_prompt=True, **names))

    def _special(self, name: str) -> str:
        value = self._config.get(name) or ""
        return str(value["content"] if isinstance(value, dict) else value)


class _Stream:
    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token: int) -> str:
        return self._stream.step(self._loaded, token) or ""
