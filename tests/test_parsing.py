"""hangup parses JSON at most once, and not at all where bytes can pass unchanged."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import orjson
import pytest
from bench.call_cost import CHAT, KINDS, InMemory, answer, request

from hangup.gateway.http.jsonbody import _Strings, with_fields

WHOLE = KINDS["whole"][1]
LARGE = {"data": [{"index": n, "embedding": [0.5] * 256} for n in range(100)], "object": "list", "model": "m"}


class Parses:
    """Counts the texts that are parsed, by their first characters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: list[bytes] = []
        loads = orjson.loads

        def counting(text: Any) -> Any:
            self.texts.append(bytes(text))
            return loads(text)

        monkeypatch.setattr(orjson, "loads", counting)

    def of(self, text: bytes) -> int:
        """Return how often this text was parsed, also with other fields."""
        return sum(abs(len(parsed) - len(text)) < 200 for parsed in self.texts)


@pytest.mark.parametrize(
    ("path", "body", "reads", "requests", "answers"),
    [
        ("/v1/embeddings", {"model": "m", "input": "x" * 5000}, answer(LARGE), 0, 0),
        ("/v1/chat/completions", {**CHAT, "user": "x" * 5000}, WHOLE, 1, 1),
        ("/v1/chat/completions", {**CHAT, "user": "x" * 5000, "stream": False}, WHOLE, 1, 1),
        ("/v1/chat/completions", {**CHAT, "user": "x" * 5000, "stream": True}, KINDS["streamed"][1], 1, None),
    ],
    ids=["embeddings", "whole", "whole, with a field to change", "streamed"],
)
def test_a_body_is_parsed_at_most_once(
    monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], reads: list[bytes], requests: int, answers: int | None
) -> None:
    sent = request(path, body)
    text = json.dumps(body).encode()

    async def main() -> None:
        made = InMemory()
        try:
            parses = Parses(monkeypatch)
            made.make([(sent, reads)] * 3)
            made.check()
        finally:
            await made.close()
        assert parses.of(text) == 3 * requests
        if answers is not None:
            assert len(parses.texts) == 3 * (requests + answers)

    asyncio.run(main())


def test_a_field_is_changed_without_another_look_at_all_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds however often the field's name occurs elsewhere."""
    value = {"messages": [{"stream": True, 'say "stream': "\\"}] * 1000, 'a "stream': {"stream": 1}, "stream": False}
    body = json.dumps(value).encode()
    with monkeypatch.context() as patched:
        parses = Parses(patched)
        changed = with_fields(body, value, {"stream": True})
        assert parses.texts == []
    assert changed == body.removesuffix(b"false}") + b"true}"


@pytest.mark.parametrize(("before", "behind"), [(0, 5000), (5000, 0)])
def test_a_field_of_a_large_body_is_found_without_a_look_at_each_text(
    monkeypatch: pytest.MonkeyPatch, before: int, behind: int
) -> None:
    """Whether the prompt is behind the field or before it: to take 1 MB apart at its quotes takes milliseconds."""
    messages = [{"role": "user", "content": 'caf\u00e9 and "stream" \n' * 8}]
    body = json.dumps({"messages": messages * before, "stream": False, "input": messages * behind}).encode()
    taken_apart: list[int] = []
    split = _Strings._split

    def noting(self: _Strings, piece: bytes) -> tuple[bytes, int]:
        taken_apart.append(len(piece))
        return split(self, piece)

    monkeypatch.setattr(_Strings, "_split", noting)
    changed = with_fields(body, json.loads(body), {"stream": True})
    assert json.loads(changed)["stream"] is True and len(changed) == len(body) - 1
    assert sum(taken_apart) < 100
