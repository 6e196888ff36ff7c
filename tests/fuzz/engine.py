"""An engine that answers by the number in the request: correctly for calls that check, else as the dice say."""

from __future__ import annotations

import json
import re
import socket
import struct
import time

from fuzz.grammar import Dice
from support.raw_engine import DONE, HEAD, LAST, chunk, event

_CHECK = re.compile(rb"check-(\d+)\.")
_CASE = re.compile(rb"case-(\d+)\.")


def script(sock: socket.socket, request: bytes) -> None:
    """Serve one request; a script for `RawEngine`."""
    check, case = _CHECK.search(request), _CASE.search(request)
    if check is not None:
        _answer_rightly(sock, request, f"check-{int(check[1])}.")
    elif case is not None:
        _answer_oddly(sock, int(case[1]))
    else:
        sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")


def _answer_rightly(sock: socket.socket, request: bytes, word: str) -> None:
    asked = json.loads(request.partition(b"\r\n\r\n")[2])
    if asked.get("stream"):
        rows = [event(word), event(" again", '"stop"'), DONE]
        sock.sendall(HEAD + b"".join(chunk(row) for row in rows) + LAST)
        return
    body = json.dumps({"object": "list", "data": [{"embedding": [1], "word": word}]}).encode()
    sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


def odd_answer(number: int) -> tuple[bytes, Dice]:
    """Return the engine's answer to a case, and the dice that decide how it is sent."""
    dice = Dice(number ^ 0x5EED)
    return dice.answer(number), dice


def _answer_oddly(sock: socket.socket, number: int) -> None:
    data, dice = odd_answer(number)
    stays_open = dice.maybe(0.5)
    # In one piece, so that bytes behind the answer arrive with it: the gateway could not detect bytes that arrive when the
    # connection already has its next request.
    for piece in [data] if stays_open or b"POISON" in data else dice.pieces(data):
        sock.sendall(piece)
        if dice.maybe(0.2):
            time.sleep(0.002)
    if stays_open:
        return
    if dice.maybe(0.5):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()  # and no `shutdown`, behind which a request could still be read: whoever reads one must answer it
