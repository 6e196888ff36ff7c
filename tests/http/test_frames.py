"""The parser of WebSocket frames, tested with frames of another implementation, cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.frame_protocol import CloseReason, FrameProtocol

from hangup.gateway.http.head import RequestHead
from hangup.gateway.http.websocket import Frames, close_frame, is_handshake

SIZES = st.one_of(st.integers(0, 130), st.sampled_from([125, 126, 127, 65_535, 65_536, 70_000]))


def make(sizes: list[int], client: bool, close_at: int | None) -> list[bytes]:
    protocol = FrameProtocol(client=client, extensions=[])
    frames = [protocol.send_data(b"x" * size, fin=True) for size in sizes]
    if close_at is not None:
        frames.insert(min(close_at, len(frames)), protocol.close(CloseReason.NORMAL_CLOSURE, "done"))
    return [bytes(frame) for frame in frames]


@given(st.lists(SIZES, max_size=6), st.booleans(), st.none() | st.integers(0, 6), st.data())
def test_where_frames_end(sizes: list[int], client: bool, close_at: int | None, data: st.DataObject) -> None:
    frames = make(sizes, client, close_at)
    stream = b"".join(frames)
    ends = {sum(len(frame) for frame in frames[:count]) for count in range(len(frames) + 1)}
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=12)) | {len(stream)})
    walk, before = Frames(), 0
    for cut in cuts:
        walk.feed(stream[before:cut])
        assert walk.between == (cut in ends)
        before = cut
    assert walk.closed == (close_at is not None)


@given(st.lists(SIZES.filter(lambda size: size < 200), max_size=4), st.booleans())
def test_byte_by_byte(sizes: list[int], client: bool) -> None:
    walk = Frames()
    for frame in make(sizes, client, None):
        for at in range(len(frame)):
            walk.feed(frame[at : at + 1])
            assert walk.between == (at == len(frame) - 1)
    assert not walk.closed


def test_a_close_of_ours_is_read_by_others() -> None:
    reader = FrameProtocol(client=True, extensions=[])
    reader.receive_bytes(close_frame(1001, "drain_s" * 40))
    (message,) = list(reader.received_frames())
    assert tuple(message.payload) == (CloseReason.GOING_AWAY, ("drain_s" * 40)[:123])


HANDSHAKE = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@pytest.mark.parametrize(
    ("old", "new", "wish"),
    [
        (b"", b"", True),
        (b"websocket\r", b"WebSocket\r", True),
        (b"GET", b"POST", False),
        (b"HTTP/1.1", b"HTTP/1.0", False),
        (b"keep-alive, Upgrade", b"keep-alive", False),
        (b"Upgrade: websocket", b"Upgrade: h2c", False),
        (b"Sec-WebSocket-Key: x\r\n", b"", False),
        (b"Host: a\r\n", b"Host: a\r\nContent-Length: 3\r\n", False),
    ],
)
def test_handshakes(old: bytes, new: bytes, wish: bool) -> None:
    head = RequestHead(HANDSHAKE.replace(old, new) if old else HANDSHAKE, count_max=64, url_bytes_max=4096)
    assert is_handshake(head) is wish
