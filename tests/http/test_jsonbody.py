"""JSON bodies: an accepted body means the same to every parser, and a change touches nothing else."""

from __future__ import annotations

import contextlib
import json
import time
import tracemalloc
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import orjson
import pytest
from hypothesis import given

from hangup.errors import Refusal
from hangup.gateway.http.jsonbody import Brackets, Outline, Structure, counted, decode, with_fields
from support.bodies import WORST_BODIES

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=5)
READ_BYTES_MAX = 256 * 1024  # in one read of uvloop


@given(OBJECTS, st.booleans(), st.booleans())
def test_accepts_what_is_json(value: dict[str, Any], spaced: bool, ascii_only: bool) -> None:
    separators = (" , ", " : ") if spaced else (",", ":")
    body = json.dumps(value, separators=separators, ensure_ascii=ascii_only).encode()
    assert decode(body, None, 1000) == json.loads(body)


@given(OBJECTS, TEXT, VALUES, VALUES)
def test_refuses_a_key_given_twice(value: dict[str, Any], key: str, one: Any, two: Any) -> None:
    """At any depth, in any spelling."""
    name = json.dumps(key)
    odd = f"{{{name}:{json.dumps(one)},{name}:{json.dumps(two)}}}"
    value.pop("x", None)
    body = json.dumps(value)[:-1] + (", " if value else "") + f'"x":[{odd}]}}'
    with pytest.raises(Refusal, match="duplicate key"):
        decode(body.encode(), None, 1000)


@given(OBJECTS, st.lists(st.integers(0, 300), max_size=8), st.booleans())
def test_structure_counts_the_same_in_pieces(value: dict[str, Any], cuts: list[int], ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = Structure(10_000)
    for a, b in pairwise(edges):
        pieces.feed(body[a:b])
    whole = counted(body, 10_000)
    assert pieces.keys == whole.keys
    assert whole.keys == count_keys(value)


@given(OBJECTS, st.integers(1, 40), st.booleans())
def test_brackets_tell_a_cut_text_from_a_whole_one(value: dict[str, Any], step: int, ascii_only: bool) -> None:
    """Wherever the text is cut, and however it arrives."""
    body = b" " + json.dumps({"a": value}, ensure_ascii=ascii_only).encode() + b"\n"
    brackets = Brackets()
    for at in range(0, len(body), step):
        brackets.feed(body[at : at + step])
        assert brackets.closed == (b"}" not in body[at + step :])


def test_an_empty_piece_uses_up_no_backslash() -> None:
    """A chunk's size line may come in a read of its own, which yields an empty piece."""
    body = b'{"a":"x\\\\","b":"\\"c\\"","d":1}'
    for cut in range(len(body)):
        pieces = Structure(100)
        for piece in (body[:cut], b"", body[cut:]):
            pieces.feed(piece)
        assert pieces.keys == 3, cut


@given(st.integers(1, 1000), st.sampled_from([("[", "]"), ('{"k":', "}")]), st.booleans(), st.booleans())
def test_depth(levels: int, shape: tuple[str, str], large: bool, spaced: bool) -> None:
    """Depth alone decides, for small and large bodies, and whether or not orjson would write them like this."""
    deep = shape[0] * (levels - 1) + "1" + shape[1] * (levels - 1)
    pad = "x" * 70_000 if large else ""
    body = f'{{"pad":"{pad}","a":{" " if spaced else ""}{deep}}}'.encode()
    if levels <= 200:
        assert orjson.dumps(decode(body, None, 10_000))
    else:
        with pytest.raises(Refusal, match="more than 200 levels"):
            decode(body, None, 10_000)


def count_keys(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(count_keys, value.values()))
    return sum(map(count_keys, value)) if isinstance(value, list) else 0


@given(OBJECTS, st.dictionaries(st.sampled_from(["max_tokens", "stream", "n"]), st.integers(-1000, 1000), max_size=3))
def test_changes(value: dict[str, Any], changes: dict[str, Any]) -> None:
    body = orjson.dumps(value)
    assert orjson.loads(with_fields(body, value, changes)) == {**value, **changes}


def test_new_fields_leave_every_other_byte() -> None:
    body = b'  {"a" : 1.50, "big":123456789012345678901234567890 }'
    assert (
        with_fields(body, decode(body, None, 100), {"n": 1}) == b'  {"n":1,"a" : 1.50, "big":123456789012345678901234567890 }'
    )


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"1", b"{", b'{"a":NaN}', b'{"a":"\\ud800"}', b'{"a":"\xff"}', b"{}x", b'{"a":1,}']
)
def test_refuses_what_is_not(body: bytes) -> None:
    with pytest.raises(Refusal):
        decode(body, None, 100)


BIG = "123456789012345678901234567890"


@pytest.mark.parametrize(
    ("body", "changes", "wanted"),
    [
        (f'{{"stream": false, "seed":{BIG}}}', {"stream": True}, f'{{"stream": true, "seed":{BIG}}}'),
        (f'{{"a":{{"stream":false}},"s":"\\"stream\\":false","stream":false , "n":{BIG}}}', {"stream": True, "x": 1},
         f'{{"x":1,"a":{{"stream":false}},"s":"\\"stream\\":false","stream":true , "n":{BIG}}}'),
        (f'{{"max_tokens":1e9,"n":{BIG}}}', {"max_tokens": 7}, f'{{"max_tokens":7,"n":{BIG}}}'),
        (f'{{"options":{{"a":[1,{{"b":"}}"}}]}},"n":{BIG}}}', {"options": {"c": 1}}, f'{{"options":{{"c":1}},"n":{BIG}}}'),
        (f'{{"stream":false,"n":{BIG}}}', {"stream": False}, f'{{"stream":false,"n":{BIG}}}'),
        ('{"stream":null}', {"stream": True, "n": 1}, '{"n":1,"stream":true}'),
        ('{"str\\u0065am":false,"n":1.50}', {"stream": True}, '{"stream":true,"n":1.5}'),
        ('{"pad":"0123456789","str\\u0065am":false,"a":{"stream":1}}', {"stream": True},
         '{"pad":"0123456789","stream":true,"a":{"stream":1}}'),
        (f'{{"a":"0123456789 caf\\u00e9","n":{BIG},"stream":false}}', {"stream": True},
         f'{{"a":"0123456789 caf\\u00e9","n":{BIG},"stream":true}}'),
        ('{"a":"0123456789","\\u00e9":1,"b":{"\u00e9":2}}', {"\u00e9": 3}, '{"a":"0123456789","\u00e9":3,"b":{"\u00e9":2}}'),
        (" {} ", {"n": 1}, '{"n":1}'),
    ],
)  # fmt: skip
def test_changed_fields_leave_every_other_byte(body: str, changes: dict[str, Any], wanted: str) -> None:
    """The field is changed in place where its name can be found; otherwise the whole body is written again."""
    value = decode(body.encode(), None, 100)
    assert with_fields(body.encode(), value, changes).decode() == wanted


@given(OBJECTS, OBJECTS, st.booleans())
def test_any_change(value: dict[str, Any], changes: dict[str, Any], spaced: bool) -> None:
    body = json.dumps(value, indent=1 if spaced else None).encode()
    assert orjson.loads(with_fields(body, orjson.loads(body), changes)) == {**value, **changes}


FEW_NAMES = st.sampled_from(["stream", "model", 'a "stream', 'stream"', "\\\\", '\\\\"stream', ""])
NESTED = st.recursive(
    st.one_of(FEW_NAMES, st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(FEW_NAMES, inner, max_size=4)),
    max_leaves=12,
)


@given(st.dictionaries(FEW_NAMES, NESTED, max_size=5), NESTED, st.booleans())
def test_a_change_where_the_name_occurs_often(value: dict[str, Any], changed: Any, spaced: bool) -> None:
    body = json.dumps(value, indent=1 if spaced else None).encode()
    assert orjson.loads(with_fields(body, value, {"stream": changed})) == {**value, "stream": changed}


SEVERAL = [b"{}{}", b"[] []", b'{"a":1},{"b":2}', b"{}}{", b"{} 5", b'{} "}"', b"{},", b"[" * 255 + b"]" * 255]


class TestOutline:
    @given(OBJECTS, st.lists(st.integers(0, 400), max_size=6), st.booleans())
    def test_what_is_json_has_one_however_it_comes(self, value: dict[str, Any], cuts: list[int], indented: bool) -> None:
        body = json.dumps(value, ensure_ascii=False, indent=2 if indented else None).encode()
        outline = Outline()
        for start, end in pairwise([0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]):
            outline.feed(body[start:end])
        assert outline.whole

    @given(OBJECTS, st.data())
    def test_what_is_cut_has_none(self, value: dict[str, Any], data: st.DataObject) -> None:
        body = json.dumps(value, ensure_ascii=False).encode()
        outline = Outline()
        outline.feed(body[: data.draw(st.integers(0, len(body) - 1))])
        assert not outline.whole

    @pytest.mark.parametrize(
        "text", [b"", b'"text"', b"12", b"{}x", b"<html>", b'{"a":1}\n{"b":', b'{"\xff":1}', b"[}", b"{]", *SEVERAL]
    )
    def test_what_is_none(self, text: bytes) -> None:
        for pieces in ([text], [bytes([byte]) for byte in text]):
            outline = Outline()
            for piece in pieces:
                outline.feed(piece)
            assert not outline.whole


@pytest.mark.parametrize(
    "text",
    ['{"a":' * 100 + "1" + "}" * 100, "[" * 100 + "]" * 100, '{"a":1}', "[1000]", '"text"', '"' + "x" * 1000 + '\U0001f600"'],
    ids=["objects in each other", "lists in each other", "objects", "lists", "texts", "long texts"],
)
def test_what_a_body_parses_to_takes_no_more_memory_than_documented(text: str) -> None:
    """docs/operations.md, "A body takes this much memory"."""
    body = f'{{"messages":[{",".join([text] * 400)}]}}'.encode()
    tracemalloc.start()
    try:
        value = decode(body, None, 100_000)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert value and held < 4 * len(body) + 100 * counted(body, 100_000).elements


@pytest.mark.parametrize("name", WORST_BODIES)
def test_no_body_keeps_the_event_loop_for_long(name: str) -> None:
    """No piece that arrives takes 50 ms of CPU time, nor does the whole body. A machine that disturbs does so now and then; a
    fault of ours would show each time."""
    assert min(_longest_step_s(WORST_BODIES[name]()) for _ in range(3)) < 0.05


def _longest_step_s(body: bytes) -> float:
    """Check a body as it arrives; return the CPU time of the longest step. The event loop may turn between two steps."""
    structure, steps = Structure(100_000), [time.thread_time()]
    with contextlib.suppress(Refusal):
        for at in range(0, len(body), READ_BYTES_MAX):
            structure.feed(body[at : at + READ_BYTES_MAX])
            steps.append(time.thread_time())
        decode(body, structure, 100_000)
    steps.append(time.thread_time())
    return max(after - before for before, after in pairwise(steps))
