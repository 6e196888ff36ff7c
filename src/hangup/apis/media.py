"""Files inside a JSON request: images, audio and documents as base64, whose bytes tell nothing of their tokens."""

from __future__ import annotations

from typing import Any

from hangup.apis.base import Json

FILE_TOKENS = 1500  # about what an image takes; an engine's own count corrects it
_LEAST_BYTES = 1024  # what is smaller may as well be text
_DEPTH_MAX = 6  # request · messages · message · content · part · image_url · url


def embedded(value: Json) -> tuple[int, int]:
    """Bytes of a request that are files, and how many files they are."""
    size = count = 0
    messages = value.get("messages") or value.get("input")
    todo: list[tuple[Any, int]] = [(messages, 1)] if isinstance(messages, list) else []
    todo += [(images, 1) for images in (value.get("images"),) if isinstance(images, list)]
    while todo:
        item, depth = todo.pop()
        if isinstance(item, str):
            if len(item) >= _LEAST_BYTES and depth > 2 and _is_file(item):
                size, count = size + len(item), count + 1
        elif depth < _DEPTH_MAX:
            parts = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
            todo += [(part, depth + 1) for part in parts]
    return size, count


def _is_file(text: str) -> bool:
    """A data URL, or base64: one long word."""
    return text.startswith("data:") or " " not in text[:_LEAST_BYTES]
