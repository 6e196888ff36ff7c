"""The engine computes nothing for a client that does not read; others continue, and the client later resumes where it
stopped."""

from __future__ import annotations

import time

from engine.fakes import FakeModel
from hangup.engine.engine import Engine, Outbox
from hangup.engine.options import EngineOptions
from hangup.engine.request import Progress, SubmittedRequest
from support.processes import EngineProcess
from support.raw import Client
from support.waiting import wait_until


def test_a_paused_call_gets_no_forward_and_the_others_do() -> None:
    got: dict[str, int] = {"slow": 0, "quick": 0}

    def post(outbox: Outbox) -> None:
        for on_event, event in outbox:
            on_event(event)

    def count(name: str):  # type: ignore[no-untyped-def]
        def on_event(event: object) -> None:
            got[name] += event.tokens if isinstance(event, Progress) else 0

        return on_event

    engine = Engine(FakeModel(), EngineOptions(slots=2, spec="off"), post)
    request = SubmittedRequest(prompt=(1, 2), tokens_max=50, seed=1, ignore_eos=True)
    slow, _ = (engine.submit(request, count(name)) for name in got)
    for _ in range(6):
        engine.step()
    slow.pause()
    before = dict(got)
    for _ in range(10):
        engine.step()
    assert got["slow"] == before["slow"] and got["quick"] == before["quick"] + 10
    slow.resume()
    while engine.step():
        pass
    assert got == {"slow": 50, "quick": 50}


def test_the_engine_rests_while_its_only_reader_does_not_read() -> None:
    with EngineProcess(slots=2) as engine, Client(engine.address, receive_buffer=2048) as client:
        body = {"prompt": "ROMEO:", "stream": True, "max_tokens": 1000, "ignore_eos": True, "logprobs": 20}
        client.post("/v1/completions", body)
        client.read_until(b"data:")

        def rests() -> bool:
            before = engine.counters()["tokens"]
            time.sleep(0.5)
            return bool(before == engine.counters()["tokens"])

        wait_until(rests, what="an engine that rests")
        assert engine.counters()["running"] == 1 and engine.counters()["tokens"] < 900
        client.read_until(b"[DONE]")
        assert engine.wait_for(running=0)["tokens"] == 1000
