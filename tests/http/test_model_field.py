"""hangup finds the model at either end of a form, and neither searches nor changes the file in between."""

from __future__ import annotations

import pytest

from hangup.gateway.apis import model_field

KIND = b"multipart/form-data; boundary=b"
MODEL = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
OTHER = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nnot this\r\n'


def file(content: bytes) -> bytes:
    return b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + content + b"\r\n"


@pytest.mark.parametrize("size", [0, 100, 1_000_000])
@pytest.mark.parametrize("first", [True, False])
def test_either_end(size: int, first: bool) -> None:
    parts = [MODEL, file(b"\0" * size)]
    body = b"".join(parts if first else reversed(parts)) + b"--b--\r\n"
    assert model_field.find(body, KIND) == "whisper"
    assert model_field.replace(body, KIND, "w2") == body.replace(b"whisper", b"w2")


def test_the_file_is_not_searched() -> None:
    body = file(b"\0" * 500_000 + OTHER + b"\0" * 500_000) + b"--b--\r\n"
    assert model_field.find(body, KIND) == ""
    assert model_field.replace(body, KIND, "w2") == body


def test_a_glance_at_json_reads_both_ends_and_parses_nothing() -> None:
    long = b'"input":"' + b"x" * 9000 + b'"'
    for body, name in (
        (b'{"model":"e5","input":"a"}', "e5"),
        (b'{"model": "caf\\u00e9"}', "café"),
        (b"{" + long + b',"model":"late"}', "late"),
        (b"{" + long + b',"model":"middle",' + long[:-1] + b'"}', ""),
        (b'{"input":"\\"model\\": \\"no\\"","model":"yes"}', "yes"),
        (b'{"input":', ""),
    ):
        assert model_field.glance(body, b"application/json") == name
    assert model_field.glance(b"", b"", b"?model=q") == "q"
