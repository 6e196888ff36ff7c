"""A kill waits for the engine's confirmation that the work is gone, and reports it; so do the timeline and the slots."""

from __future__ import annotations

import sys
import time
from typing import Any

from admin.test_api import admin, streaming
from admin.test_commands import as_json, hangup
from support.processes import Gateway, StandIn, gateway_and_engine, reserved_port
from support.raw import Client
from support.waiting import wait_until


def recognised(gateway: Gateway, engine: str) -> None:
    """Wait until hangup has recognised the engine; before that, it cannot query what the engine runs."""
    wait_until(lambda: admin(gateway, "GET", "/api/backends")[1]["backends"][0]["engine"] == engine)


def zombies(gateway: Gateway) -> list[dict[str, Any]]:
    return list(admin(gateway, "GET", "/api/zombies")[1]["zombies"])


def test_an_honest_engine_is_verified_in_the_answer_and_in_the_timeline() -> None:
    with gateway_and_engine() as (gateway, engine):
        recognised(gateway, "standin")
        with streaming(gateway, "one"), streaming(gateway, "two"):
            answer = as_json(gateway, "kill", "one", "two")
            rows = {row["id"]: (row["verified"], row["release"]) for row in answer["killed"]}
            assert rows == {"one": (True, "verified"), "two": (True, "verified")} and answer["missing"] == []
            assert engine.stats()["running"] == 0
        shown = as_json(gateway, "trace", "one")
        assert shown["timeline"][0]["what"] == "first byte of the request"
        assert shown["timeline"][-1]["what"] == "verified: the engine stopped the work"
        assert (shown["engine_let_go"], shown["release"]) == (True, "verified")
        assert "verified: the engine stopped the work" in hangup(gateway, "trace", "one").stdout


def test_a_deaf_engine_is_not_called_verified() -> None:
    """The wait is bounded; then the answer, the timeline, the backends and the zombies report that the engine still works."""
    settings = {"kill_wait_s": 1.0, "release_grace_s": 0.3, "abort_again_max": 1}
    with gateway_and_engine(settings, deaf=True) as (gateway, engine):
        recognised(gateway, "standin")
        with streaming(gateway, "deaf"):
            began = time.monotonic()
            done = hangup(gateway, "kill", "deaf", "--wait", "600s")
            assert time.monotonic() - began >= 1.0
        assert done.returncode == 1 and "NOT STOPPED: the engine is still working on it" in done.stdout
        assert "verified:" not in done.stdout
        shown = as_json(gateway, "trace", "deaf")
        assert (shown["engine_let_go"], shown["release"]) == (False, "zombie")
        assert any(step["what"].startswith("zombie: ") for step in shown["timeline"])
        (zombie,) = zombies(gateway)
        assert (zombie["id"], zombie["release"], zombie["tenant"], zombie["cause"]) == ("deaf", "zombie", "default", "killed")
        assert engine.stats()["running"] == 1
        wait_until(lambda: "quarantined" in hangup(gateway, "backends").stdout)
        (backend,) = as_json(gateway, "backends")["backends"]
        assert backend["zombies"] == ["deaf"] and "deaf still runs" in backend["ladder_reason"]
        assert gateway.metrics()[f'hangup_backend_quarantined{{backend="{backend["name"]}"}}'] == 1


def test_who_does_not_want_to_wait_is_told_that_nothing_is_known_yet() -> None:
    with gateway_and_engine(deaf=True) as (gateway, _):
        recognised(gateway, "standin")
        with streaming(gateway, "quick"):
            (killed,) = admin(gateway, "DELETE", "/api/calls/quick?wait_s=0")[1]["killed"]
            assert (killed["verified"], killed["release"], killed["let_go_after_s"]) == (None, "pending", None)
        assert admin(gateway, "DELETE", "/api/calls/quick?wait_s=soon")[0] == 400


def test_an_engine_that_cannot_tell_is_not_called_verified() -> None:
    config = '[[backend]]\nurl = "{}"\nengine = "openai"\n'
    with StandIn() as engine, Gateway(config=config.format(engine.url)) as gateway, streaming(gateway, "mute"):
        (killed,) = admin(gateway, "DELETE", "/api/calls?id=mute")[1]["killed"]
        assert (killed["verified"], killed["release"]) == (None, "unverified")
        assert admin(gateway, "GET", "/api/calls/mute")[1]["timeline"][-1]["what"].startswith("unverified: ")


def test_a_call_has_its_slot_where_we_choose_it() -> None:
    """hangup pins each call to a slot of llama-server, and shows it in the list, in the timeline, and for a zombie."""
    with gateway_and_engine({"release_grace_s": 0.2}, slots=2, like="llamacpp") as (gateway, engine):
        recognised(gateway, "llamacpp")
        wait_until(lambda: as_json(gateway, "backends")["backends"][0]["limit"] == 2)
        with streaming(gateway, "a"), streaming(gateway, "b"):
            slots = {row["id"]: row["slot"] for row in as_json(gateway, "ps")["calls"]}
            assert sorted(slots.values()) == [0, 1]
            (killed,) = as_json(gateway, "kill", "a")["killed"]
            assert (killed["slot"], killed["verified"]) == (slots["a"], True)
            assert f"in slot {slots['a']}" in str(as_json(gateway, "trace", "a")["timeline"])
            engine.behave(deaf=True)
        stories = wait_until(lambda: zombies(gateway))
        assert (stories[0]["id"], stories[0]["slot"]) == ("b", slots["b"]) and stories[0]["tokens_since"] > 0


def test_a_call_has_its_slot_where_the_engine_chooses_it() -> None:
    """hangup queries its own engine, in the same process, when somebody lists the calls."""
    with Gateway() as gateway:
        recognised(gateway, "hangup")
        with Client(gateway.address) as client:
            body = {"prompt": "ROMEO:", "stream": True, "ignore_eos": True, "max_tokens": 1000}
            client.post("/v1/completions", body, {"x-request-id": "inside"})
            client.read_until(b'"text"')
            assert admin(gateway, "GET", "/api/calls")[1]["calls"][0]["slot"] == 0
            (killed,) = admin(gateway, "DELETE", "/api/calls/inside")[1]["killed"]
            assert (killed["slot"], killed["verified"]) == (0, True)


def test_a_wedged_engine_that_is_restarted_ends_its_zombies() -> None:
    """A zombie's history tells how long it lived, how many aborts it got, and that a restart ended it."""
    config = f"""
    [limits]
    release_grace_s = 0.2
    abort_again_max = 1
    abort_backoff_s = 0.05
    [[backend]]
    url = "http://127.0.0.1:PORT"
    spawn = "{sys.executable} -m hangup standin --deaf --port {{port}}"
    """
    with reserved_port() as port, Gateway(config=config.replace("PORT", str(port))) as gateway:
        recognised(gateway, "standin")
        with streaming(gateway, "haunted"):
            pass
        story = wait_until(lambda: next((z for z in zombies(gateway) if z["lived_s"] is not None), None))
        assert story is not None
        assert (story["id"], story["release"], story["aborts"]) == ("haunted", "restarted", 1)
        assert (
            as_json(gateway, "trace", "haunted")["timeline"][-1]["what"]
            == "restarted: the work is gone with the old engine process"
        )
