"""Finds the files in a JSON request: images, audio and documents, as base64, whose size says nothing about their tokens, or as
links, which show nothing at all."""

from __future__ import annotations

from typing import Any, Final

from hangup.gateway.apis.base import Json

FILE_TOKENS: Final = 1500  # roughly one image; the engine's own count corrects it
_LEAST_BYTES: Final = 1024  # anything smaller may as well be text
_DEPTH_MAX: Final = 6  # request · messages · message · content · part · image_url · url
_MAY_HOLD_FILES: Final = 16 * 1024  # bytes; a body of at least this size is always searched
_FILE_PARTS: Final = frozenset(
    [
        *("image_url", "video_url", "audio_url", "input_audio", "file"),  # OpenAI's chat, with vLLM's additions
        *("input_image", "input_file"),  # OpenAI's responses
        *("image", "document"),  # Anthropic's
    ]
)


def may_hold_files(body: bytes) -> bool:
    """Return True if a search for files is worthwhile; costs next to nothing for the small texts of most calls."""
    return len(body) >= _MAY_HOLD_FILES or b'_url"' in body or b'file_id"' in body or b'"source"' in body


def embedded(value: Json) -> tuple[int, int]:
    """Return how many bytes of a request are files, and how many files it has."""
    size = count = 0
    messages = value.get("messages") or value.get("input")
    todo: list[tuple[Any, int, bool]] = [(messages, 1, False)] if isinstance(messages, list) else []
    todo += [(images, 1, False) for images in (value.get("images"),) if isinstance(images, list)]
    while todo:
        item, depth, counted = todo.pop()
        if type(item) is dict:
            if depth > 2 and not counted and _is_file_part(item):
                count, counted = count + 1, True
            item = item.values()
        for part in item:  # only what may hold a file is noted for later: most of a long prompt are short texts
            if type(part) is str:
                if len(part) >= _LEAST_BYTES and depth > 1 and _is_file(part):
                    size, count = size + len(part), count + (not counted)
            elif depth < _DEPTH_MAX - 1 and (type(part) is dict or type(part) is list):
                todo.append((part, depth + 1, counted))
    return size, count


def _is_file_part(item: Json) -> bool:
    kind = item.get("type")
    return type(kind) is str and kind in _FILE_PARTS


def _is_file(text: str) -> bool:
    """Return True for a data URL or base64, which is one long word."""
    return text.startswith("data:") or " " not in text[:_LEAST_BYTES]
