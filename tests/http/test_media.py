"""hangup finds the files in a request's JSON, and mistakes no text for one."""

from __future__ import annotations

import base64
import json
import os

from hangup.gateway.apis.base import Json
from hangup.gateway.apis.media import FILE_TOKENS, embedded, may_hold_files
from hangup.sim.load import IMAGE_GUESS

IMAGE = base64.b64encode(os.urandom(6000)).decode()
TEXT = "All the world's a stage, and all the men and women merely players. " * 100


def test_images_audio_and_documents_of_every_api() -> None:
    url = "data:image/png;base64," + IMAGE
    openai = [{"type": "image_url", "image_url": {"url": url}}]
    audio = [{"type": "input_audio", "input_audio": {"data": IMAGE, "format": "wav"}}]
    anthropic = [{"type": "image", "source": {"type": "base64", "data": IMAGE}}]
    requests = [{"messages": [{"role": "user", "content": content}]} for content in (openai, audio, anthropic)]
    requests.append({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]})
    requests.append({"messages": [{"role": "user", "content": "what is this?", "images": [IMAGE]}]})
    for value in requests:
        size, count = embedded(value)
        assert count == 1 and size >= len(IMAGE)


def test_a_link_is_a_file_though_nothing_of_it_is_to_be_seen() -> None:
    url = "https://example.com/cat.png"
    chat: list[Json] = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what is this?"}]
    video: list[Json] = [{"type": "video_url", "video_url": {"url": url}}]
    kept: list[Json] = [{"type": "file", "file": {"file_id": "file-1"}}]
    anthropic: list[Json] = [{"type": "document", "source": {"type": "url", "url": url}}]
    parts: list[list[Json]] = [chat, video, kept, anthropic]
    requests: list[Json] = [{"messages": [{"role": "user", "content": content}]} for content in parts]
    requests.append({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]})
    requests.append({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}]})
    for value in requests:
        assert embedded(value) == (0, 1)
        assert may_hold_files(json.dumps(value).encode())
    assert embedded({"messages": [{"role": "user", "content": chat + chat}]}) == (0, 2)


def test_small_text_is_not_even_looked_at() -> None:
    assert not may_hold_files(json.dumps({"messages": [{"role": "user", "content": "https://example.com/cat.png"}]}).encode())
    assert may_hold_files(json.dumps({"messages": [{"role": "user", "content": TEXT * 10}]}).encode())


def test_the_simulator_takes_an_image_for_as_large_as_the_gateway_does() -> None:
    assert IMAGE_GUESS == FILE_TOKENS


def test_text_is_text_however_long() -> None:
    assert embedded({"messages": [{"role": "user", "content": TEXT}]}) == (0, 0)
    assert embedded({"messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}], "input": 5}) == (0, 0)
    assert embedded({"prompt": TEXT}) == (0, 0) == embedded({"messages": "odd"})


def test_depth_is_bounded() -> None:
    value: list[object] = [IMAGE]
    for _ in range(900):
        value = [value]
    assert embedded({"messages": value}) == (0, 0)
