"""The examples: they leak without hangup and are clean with it, by the engine's own counters.

They run on the embedded engine, which is a real one, and on the stand-in where a token must come at a known time.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hangup.lint import lint_file
from library.examples import EXAMPLES, Address, served
from support.processes import EngineProcess, StandIn, get_json
from support.raw import Client
from support.waiting import wait_until

ANSWER_TOKENS = 50
TOKEN_S = 0.05
CALLS = 10


# On the embedded engine


@pytest.fixture(scope="module", params=["leaking", "clean"])
def on_embedded(request: pytest.FixtureRequest) -> Iterator[tuple[str, Address, EngineProcess]]:
    with EngineProcess(slots=8) as engine, served(request.param, engine.url) as address:
        yield request.param, address, engine


@pytest.mark.parametrize("path", ["answer", "blocking", "background"])
def test_clients_that_leave_as_soon_as_the_engine_has_their_call(
    on_embedded: tuple[str, Address, EngineProcess], path: str
) -> None:
    """The model decides how long an answer is; a short one may end before its client disconnects."""
    name, address, engine = on_embedded
    before = engine.wait_for(running=0, waiting=0)
    for number in range(1, CALLS + 1):
        client = Client(address)
        client.post(f"/{path}?prompt=hello", {})
        engine.wait_for(submitted=before["submitted"] + number)
        client.fin()
    gained: dict[str, int] = {}

    def all_ended() -> bool:
        """Return whether all calls have ended; a call that was just submitted neither runs nor waits yet."""
        gained.update({key: int(value - before[key]) for key, value in engine.counters().items()})
        return gained["finished"] + gained["cancelled_running"] + gained["cancelled_waiting"] >= CALLS

    wait_until(all_ended, what="the end of all calls")
    if name == "leaking":
        assert (gained["finished"], gained["cancels"]) == (CALLS, 0), "computed to the end, for nobody"
    else:
        stopped = gained["cancelled_running"] + gained["cancelled_waiting"]
        assert stopped > 0 and gained["finished"] + stopped == CALLS


# On the stand-in


@pytest.fixture(scope="module")
def engine() -> Iterator[StandIn]:
    with StandIn(slots=8, prefill_s=0.5, token_s=TOKEN_S, answer_tokens=ANSWER_TOKENS) as process:
        yield process


@pytest.fixture(scope="module", params=["leaking", "clean"])
def example(request: pytest.FixtureRequest, engine: StandIn) -> Iterator[tuple[str, Address]]:
    with served(request.param, engine.url) as address:
        yield request.param, address


@pytest.mark.parametrize("path", ["answer", "blocking", "background"])
def test_what_is_computed_after_the_client_left(example: tuple[str, Address], engine: StandIn, path: str) -> None:
    name, address = example
    before = engine.stats()
    client = Client(address)
    client.post(f"/{path}?prompt=hello", {})
    wait_until(lambda: engine.stats()["tokens"] - before["tokens"] >= 2, what="two tokens")
    client.fin()
    after = engine.wait_idle()
    computed = after["tokens"] - before["tokens"]
    if name == "leaking":
        assert (after["finished"] - before["finished"], computed) == (1, ANSWER_TOKENS), "computed to its end, for nobody"
    else:
        assert after["aborted"] - before["aborted"] == 1
        assert computed < ANSWER_TOKENS


def test_a_client_that_leaves_during_the_prefill(example: tuple[str, Address], engine: StandIn) -> None:
    name, address = example
    before = engine.stats()
    client = Client(address)
    client.post("/stream?prompt=hello", {})
    wait_until(lambda: engine.stats()["prefills"] > before["prefills"], what="the prefill")
    client.fin()
    computed = engine.wait_idle()["tokens"] - before["tokens"]
    assert (computed > 0) == (name == "leaking")


def test_a_stream_is_complete(engine: StandIn) -> None:
    with served("clean", engine.url) as address, Client(address) as client:
        client.post("/stream?prompt=hello", {})
        answer = client.read_answer()
    assert answer.complete and answer.body.endswith(b"data: [DONE]\n\n")
    assert answer.body.count(b"data: {") >= ANSWER_TOKENS


def test_a_server_that_shuts_down_stops_the_engine(engine: StandIn) -> None:
    before = engine.stats()
    with served("clean", engine.url) as address:
        client = Client(address)
        client.post("/answer?prompt=hello", {})
        wait_until(lambda: engine.stats()["tokens"] > before["tokens"], what="a token")
    after = engine.wait_idle()
    client.fin()
    assert after["aborted"] - before["aborted"] == 1


def test_the_linter_tells_them_apart() -> None:
    assert {f.code for f in lint_file(EXAMPLES / "leaking.py", {"HU001", "HU004"})} == {"HU001", "HU004"}
    assert lint_file(EXAMPLES / "clean.py") == []
    assert lint_file(EXAMPLES / "gated.py") == []


def test_the_gate_on_sockets(engine: StandIn) -> None:
    """One call runs, one waits, and the third gets 503; the engine never sees a client that left the queue."""
    before = engine.stats()["requests"]
    with served("gated", engine.url) as address:

        def gate() -> dict[str, int]:
            return dict(get_json(f"http://{address[0]}:{address[1]}/gate"))

        first, second, third = Client(address), Client(address), Client(address)
        first.post("/stream?prompt=one", {})
        wait_until(lambda: gate()["running"] == 1, what="the first in its slot")
        second.post("/stream?prompt=two", {})
        wait_until(lambda: gate()["waiting"] == 1, what="the second in line")
        third.post("/stream?prompt=three", {})
        answer = third.read_answer()
        assert (answer.status, answer.headers["x-hangup-reason"]) == (503, "queue_full")
        assert 1 <= int(answer.headers["retry-after"]) <= 30
        wait_until(lambda: engine.stats()["requests"] == before + 1, what="the first at the engine")
        second.fin()
        wait_until(lambda: gate()["waiting"] == 0, what="the departed out of the line")
        first.fin()
        wait_until(lambda: gate()["running"] == 0, what="the slot free")
        third.fin()
    assert engine.stats()["requests"] == before + 1
