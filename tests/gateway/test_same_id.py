"""A client disconnects and calls again under the same X-Request-Id: the abort of the first call never hits the second."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from support.processes import EngineProcess, Gateway, StandIn
from support.raw import Client
from support.waiting import wait_until

TRIES = 40
PATH = "/v1/completions"
ASK: dict[str, Any] = {"prompt": "ROMEO:", "stream": True, "ignore_eos": True, "max_tokens": 200}
FEW = 12  # tokens of the second call's whole answer
STEPS: dict[str, Any] = {"slots": 8, "prefill_s": 0.02, "token_s": 0.005}


@contextlib.contextmanager
def serving(kind: str) -> Iterator[Gateway]:
    if kind == "embedded":  # it need not be recognised
        with Gateway() as gateway:
            yield gateway
        return
    process = EngineProcess(slots=8) if kind == "hangup" else StandIn(like=kind.removeprefix("standin"), **STEPS)
    with process as engine, Gateway(engine.url) as gateway:
        known(gateway)
        yield gateway


def known(gateway: Gateway) -> None:
    wait_until(lambda: any("recognised" in str(row.get("change")) for row in gateway.log()), what="recognition")


@pytest.mark.parametrize("kind", ["hangup", "embedded", "standin", "vllm", "sglang", "lmdeploy"])
def test_the_second_call_is_not_stopped_for_the_first(kind: str) -> None:
    with serving(kind) as gateway:
        for attempt in range(TRIES):
            name = {"X-Request-Id": f"again-{attempt}"}
            with Client(gateway.address) as first, Client(gateway.address) as second:
                first.post(PATH, ASK, name)
                first.read_until(b"data:")
                first.reset()
                second.post(PATH, ASK | {"max_tokens": FEW}, name)
                answer = second.read_answer()
                assert answer.complete and b"[DONE]" in answer.body, answer.body[-300:]
                assert answer.body.count(b'"finish_reason":"length"') == 1, f"try {attempt}: {answer.body[-300:]!r}"
                assert answer.headers["x-request-id"].startswith(name["X-Request-Id"])


def test_an_abort_that_comes_late_does_not_reach_the_second_call() -> None:
    """The reaper repeats the abort to a deaf engine; when the engine finally obeys, a live call has the dead call's id."""
    settings: dict[str, Any] = {"release_grace_s": 0.3, "abort_backoff_s": 0.3, "abort_again_max": 6}
    with StandIn(deaf=True, answer_tokens=5000, **STEPS) as engine, Gateway(engine.url, **settings) as gateway:
        known(gateway)
        with Client(gateway.address) as first, Client(gateway.address) as second:
            first.post(PATH, ASK | {"max_tokens": 4000}, {"X-Request-Id": "same"})
            first.read_until(b"data:")
            first.fin()
            gateway.call_log("same")
            second.post(PATH, ASK | {"max_tokens": 400}, {"X-Request-Id": "same"})
            second.read_until(b"data:")
            engine.behave(deaf=False)
            wait_until(lambda: engine.stats()["abort_requests"] >= 2, what="a second abort")
            wait_until(lambda: engine.stats()["running"] <= 1, what="the first call's end")
            assert b"[DONE]" in second.read_until(b"[DONE]")


def test_the_engine_never_sees_a_name_that_it_could_be_stopped_by_twice() -> None:
    """Each attempt has its own id; the client, the log and the trace keep the client's id."""
    with StandIn(**STEPS) as engine, Gateway(engine.url) as gateway:
        known(gateway)
        for _ in range(3):
            with Client(gateway.address) as client:
                client.post(PATH, ASK | {"max_tokens": 1}, {"X-Request-Id": "mine"})
                assert client.read_answer().headers["x-request-id"] == "mine"
        wait_until(lambda: len([row for row in gateway.log() if row.get("id") == "mine"]) == 3, what="the log")
        ids = [row["headers"]["x-request-id"] for row in engine.seen()]
        assert len(set(ids)) == 3 and all(name.startswith("hu-") for name in ids)
        assert [row["engine_id"] for row in gateway.log() if row.get("id") == "mine"] == ids


def test_an_engine_that_is_not_stopped_by_name_gets_the_clients_own() -> None:
    with StandIn(like="llamacpp", **STEPS) as engine, Gateway(engine.url) as gateway:
        known(gateway)
        with Client(gateway.address) as client:
            client.post(PATH, ASK | {"max_tokens": 1}, {"X-Request-Id": "mine"})
            client.read_answer()
        assert engine.seen()[-1]["headers"]["x-request-id"] == "mine"
        assert gateway.call_log("mine")["engine_id"] is None
