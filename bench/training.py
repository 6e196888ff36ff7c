"""Plays the calls that a compiled gateway is trained with: what they take is what the compiler lays out as the fast way.

usage: python -m bench.training [CALLS]

The gateway and the stand-in engine are those that this Python imports. The mix is one of ordinary clients on every API that
generates text, with another engine than the benchmarks': what is tuned on one load is measured on another.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any, NamedTuple

from bench import targets

CALLS = 400  # of each kind
CLIENTS = 16  # that call at the same time
TIMEOUT_S = 60.0
_MESSAGES = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Name three rivers, and a lake."}]


class Kind(NamedTuple):
    path: str
    body: dict[str, Any]
    hangs_up: bool = False  # once the first bytes of the answer are there


def _all_ways(path: str, body: dict[str, Any]) -> list[Kind]:
    """Return a call whose answer comes as a whole, one that is streamed, and one whose client hangs up during the stream."""
    return [Kind(path, body), Kind(path, body | {"stream": True}), Kind(path, body | {"stream": True}, hangs_up=True)]


KINDS = [
    *_all_ways("/v1/chat/completions", {"model": "m", "messages": _MESSAGES, "max_tokens": 24, "temperature": 0.2}),
    *_all_ways("/v1/completions", {"model": "m", "prompt": "Once upon a time", "max_tokens": 16}),
    *_all_ways("/v1/messages", {"model": "m", "messages": _MESSAGES[1:], "max_tokens": 24}),
    *_all_ways("/v1/responses", {"model": "m", "input": "Name three rivers.", "max_output_tokens": 16}),
    *_all_ways("/api/chat", {"model": "m", "messages": _MESSAGES, "options": {"num_predict": 16}}),
    Kind("/v1/embeddings", {"model": "m", "input": "a river"}),
]


def play(port: int, calls: int) -> int:
    """Play so many calls of each kind, and return how many the gateway answered with 200."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        shares = [(kind, len(range(number, calls, CLIENTS))) for number in range(CLIENTS) for kind in KINDS]
        return sum(pool.map(lambda share: _client(port, *share), shares))


def _client(port: int, kind: Kind, calls: int) -> int:
    """Play one client, which keeps its connection unless it hangs up."""
    connection, answered = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S), 0
    for _ in range(calls):
        connection.request("POST", kind.path, json.dumps(kind.body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answered += answer.status == 200
        if kind.hangs_up:
            answer.read(1)
            connection.close()
        else:
            answer.read()
    connection.close()
    return answered


def main(arguments: list[str]) -> int:
    calls = int(arguments[0]) if arguments else CALLS
    fast = {"slots": 64, "queue": 1000, "prefill_s": 0.002, "token_s": 0.002}
    with targets.standin(**fast) as engine, targets.hangup(engine.port) as gateway:
        answered = play(gateway.port, calls)
    wanted = calls * len(KINDS)
    print(f"{answered} of {wanted} calls answered")
    return 0 if answered == wanted else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
