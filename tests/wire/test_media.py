"""Files in a request's JSON are found, and text is not taken for one."""

from __future__ import annotations

import base64
import os

from hangup.apis.media import embedded

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


def test_text_is_text_however_long() -> None:
    assert embedded({"messages": [{"role": "user", "content": TEXT}]}) == (0, 0)
    assert embedded({"messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}], "input": 5}) == (0, 0)
    assert embedded({"prompt": TEXT}) == (0, 0) == embedded({"messages": "odd"})


def test_depth_is_bounded() -> None:
    value: list[object] = [IMAGE]
    for _ in range(900):
        value = [value]
    assert embedded({"messages": value}) == (0, 0)
