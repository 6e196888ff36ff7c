"""Admission over sockets: which calls are refused at once, with which message; and clients that leave the queue cost
nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
from collections import Counter
from functools import partial
from typing import Any

import openai
import pytest

from support.processes import Gateway, StandIn, gateway_and_engine, get_json
from support.raw import Client, ask
from support.waiting import wait_until

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hello"}]}
LONG: dict[str, Any] = {"ignore_eos": True, "max_tokens": 100_000}


def waiting(gateway: Gateway) -> int:
    return int(gateway.metrics()["hangup_queue_depth"])


def calls_logged(gateway: Gateway, count: int) -> list[dict[str, Any]]:
    """Return the log lines of this many calls, once they are written."""
    wait_until(lambda: sum(row["event"] == "call_ended" for row in gateway.log()) >= count, what="the log")
    return [row for row in gateway.log() if row["event"] == "call_ended"]


async def call(gateway: Gateway, tokens: int) -> int:
    """Return how many ends its stream had; it must be one."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    body = json.dumps({**BODY, "max_tokens": tokens, "ignore_eos": True, "stream": True}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    return answer.count(b"[DONE]")


def has_finished(engine: StandIn) -> bool:
    return engine.stats()["finished"] == 1


def tenants(**settings: str) -> str:
    """Return the configuration of these tenants, with keys `key-of-NAME`."""
    rows = []
    for name, own in settings.items():
        digest = hashlib.sha256(f"key-of-{name}".encode()).hexdigest()
        rows.append(f'[[tenant]]\nname = "{name}"\nkey_sha256 = ["{digest}"]\n{own}\n')
    return "".join(rows)


def key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-of-{name}"}


class TestRefusals:
    @pytest.mark.parametrize(
        ("path", "kind"),
        [(CHAT, "server_error"), ("/v1/messages", "overloaded_error"), ("/api/chat", None), ("/generate", None)],
    )
    def test_a_full_queue_answers_at_once_in_the_apis_own_shape(self, path: str, kind: str | None) -> None:
        with gateway_and_engine({"slots": 1, "queue_depth": 1}) as (gateway, engine), Client(gateway.address) as runs:
            runs.chat(stream=True, **LONG)
            runs.read_until(b'"content":" ')
            with Client(gateway.address) as waits:
                waits.chat()
                wait_until(lambda: waiting(gateway) == 1)
                refused = ask(gateway.address, path, {**BODY, "model": "m", "max_tokens": 5, "inputs": "hello"})
            assert (refused.status, refused.headers["x-hangup-reason"]) == (503, "queue_full")
            assert 1 <= int(refused.headers["retry-after"]) <= 30
            error = json.loads(refused.body)["error"]
            assert kind is None or error["type"] == kind
            assert engine.stats()["requests"] == 1

    def test_a_tenants_quota_is_429_and_its_own(self) -> None:
        config = tenants(small="concurrency_max = 1", other="")
        with StandIn() as engine, Gateway(engine.url, config=config) as gateway, Client(gateway.address) as runs:
            runs.post(CHAT, {**BODY, **LONG, "stream": True}, key("small"))
            runs.read_until(b'"content":" ')
            refused = ask(gateway.address, CHAT, BODY, key("small"))
            assert (refused.status, refused.headers["x-hangup-reason"]) == (429, "concurrency_max")
            assert json.loads(refused.body)["error"]["type"] == "rate_limit_error"
            assert int(refused.headers["retry-after"]) >= 1
            assert ask(gateway.address, CHAT, {**BODY, "max_tokens": 2}, key("other")).status == 200

    def test_images_teach_nothing_about_how_many_bytes_of_text_make_a_token(self) -> None:
        """Otherwise, after some images, a prompt of 100 KB would count as a handful of tokens."""
        config = tenants(pictures="", small="tokens_per_minute = 20000")
        url = "data:image/png;base64," + "A" * 100_000
        picture = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what is this?"}]
        text = {"messages": [{"role": "user", "content": "word " * 20_000}], **LONG, "stream": True}
        with StandIn(token_s=0.001) as engine, Gateway(engine.url, config=config) as gateway, Client(gateway.address) as runs:
            for _ in range(20):
                body = {"messages": [{"role": "user", "content": picture}], "max_tokens": 2}
                assert ask(gateway.address, CHAT, body, key("pictures")).status == 200
            runs.post(CHAT, text, key("small"))
            runs.read_until(b'"content":" ')
            refused = ask(gateway.address, CHAT, BODY, key("small"))
            assert (refused.status, refused.headers["x-hangup-reason"]) == (429, "tokens_per_minute")

    def test_tokens_per_minute(self) -> None:
        config = tenants(small="tokens_per_minute = 60")
        with StandIn(token_s=0.001) as engine, Gateway(engine.url, config=config) as gateway:
            first = ask(gateway.address, CHAT, {**BODY, "max_tokens": 100, "ignore_eos": True}, key("small"))
            assert first.status == 200
            refused = ask(gateway.address, CHAT, BODY, key("small"))
            assert (refused.status, refused.headers["x-hangup-reason"]) == (429, "tokens_per_minute")
            assert int(refused.headers["retry-after"]) >= 20  # some forty tokens of debt, one a second
            assert engine.stats()["requests"] == 1

    def test_what_cannot_be_in_time_is_not_begun(self) -> None:
        with gateway_and_engine({"slots": 4}, prefill_s=0.2, token_s=0.001) as (gateway, engine):
            for _ in range(10):
                assert ask(gateway.address, CHAT, {**BODY, "max_tokens": 2}).status == 200
            before = engine.stats()["requests"]
            refused = ask(gateway.address, CHAT, {**BODY, "max_tokens": 2}, {"x-request-timeout": "0.05"})
            assert (refused.status, refused.headers["x-hangup-reason"]) == (503, "infeasible")
            assert refused.headers["x-should-retry"] == "false"
            assert engine.stats()["requests"] == before
            assert ask(gateway.address, CHAT, {**BODY, "max_tokens": 2}, {"x-request-timeout": "60"}).status == 200

    def test_retries_beyond_their_share_go_first(self) -> None:
        with gateway_and_engine({"slots": 1, "queue_s": 30}) as (gateway, engine), Client(gateway.address) as runs:
            runs.chat(stream=True, **LONG)
            runs.read_until(b'"content":" ')
            clients = [Client(gateway.address) for _ in range(130)]
            for client in clients:
                client.post(CHAT, BODY, {"x-stainless-retry-count": "1"})
            answer = clients[-1].read_answer()
            assert (answer.status, answer.headers["x-hangup-reason"]) == (503, "retry_budget")
            assert answer.headers["x-should-retry"] == "false"
            for client in clients:
                client.reset()
            wait_until(lambda: waiting(gateway) == 0)
            with Client(gateway.address) as first:  # not a retry: it may wait
                first.chat()
                assert wait_until(lambda: waiting(gateway) >= 1)
            assert engine.stats()["requests"] == 1

    def test_the_sdk_obeys(self) -> None:
        """The official client obeys `x-should-retry: false`: it makes one attempt, though it may retry five times."""
        with gateway_and_engine({"slots": 4}, prefill_s=0.2, token_s=0.001) as (gateway, _):
            for _ in range(10):
                ask(gateway.address, CHAT, {**BODY, "max_tokens": 2})
            client = openai.OpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=5)
            with client, pytest.raises(openai.InternalServerError) as error:
                client.chat.completions.create(
                    model="m",
                    max_tokens=2,
                    messages=[{"role": "user", "content": "hello"}],
                    extra_headers={"x-request-timeout": "0.05"},
                )
            assert error.value.status_code == 503
            wait_until(lambda: any(row.get("cause") == "infeasible" for row in gateway.log()))
            assert [row["cause"] for row in gateway.log() if row["event"] == "call_ended"].count("infeasible") == 1


class TestQueue:
    @pytest.mark.parametrize("how", ["fin", "reset", "half_close"])
    def test_who_leaves_the_queue_frees_the_place_and_costs_the_engine_nothing(self, how: str) -> None:
        """Other routers leak counters here: after hundreds of departures, the whole capacity must still be there."""
        with gateway_and_engine({"slots": 1, "queue_depth": 4}) as (gateway, engine), Client(gateway.address) as runs:
            runs.chat(stream=True, **LONG)
            runs.read_until(b'"content":" ')
            for _ in range(50):
                clients = [Client(gateway.address) for _ in range(4)]
                for client in clients:
                    client.chat()
                wait_until(lambda: waiting(gateway) == 4)
                for client in clients:
                    getattr(client, how)()
                wait_until(lambda: waiting(gateway) == 0)
                for client in clients:
                    client.fin()
            stats = engine.stats()
            assert (stats["requests"], stats["running"], stats["prefills_for_gone"]) == (1, 1, 0)
            with Client(gateway.address) as last:
                last.chat(max_tokens=2)
                wait_until(lambda: waiting(gateway) == 1)
                runs.fin()
                assert last.read_answer().status == 200
            assert gateway.metrics()['hangup_backend_in_flight{backend="' + engine.url.removeprefix("http://") + '"}'] == 0

    def test_a_last_look_before_the_start(self) -> None:
        """A place becomes free in the instant in which the waiting client leaves: the kernel knows, the event loop does not
        yet."""
        for _ in range(10):
            with gateway_and_engine({"slots": 1}, token_s=0.005) as (gateway, engine), Client(gateway.address) as runs:
                runs.chat(stream=True, ignore_eos=True, max_tokens=20)
                runs.read_until(b'"content":" ')
                waits = Client(gateway.address)
                waits.chat()
                wait_until(lambda: waiting(gateway) == 1)
                gateway.signal(signal.SIGSTOP)
                wait_until(partial(has_finished, engine))
                waits.fin()
                gateway.signal(signal.SIGCONT)
                wait_until(lambda: waiting(gateway) == 0)
                runs.read_until(b"[DONE]")
                assert engine.stats()["requests"] == 1

    def test_tenants_take_turns(self) -> None:
        config = "slots = 1\n" + tenants(many="", few="")
        with StandIn(token_s=0.001, prefill_s=0.005) as engine, Gateway(engine.url, config=config) as gateway:
            runs = Client(gateway.address)
            runs.post(CHAT, {**BODY, **LONG, "stream": True}, key("many"))
            runs.read_until(b'"content":" ')
            clients = []
            for name, count in (("many", 30), ("few", 3)):
                for _ in range(count):
                    client = Client(gateway.address)
                    client.post(CHAT, {**BODY, "max_tokens": 4}, key(name))
                    clients.append(client)
                wait_until(lambda: waiting(gateway) == len(clients))
            runs.fin()
            for client in clients:
                assert client.read_answer().status == 200
                client.fin()
            served = [row for row in calls_logged(gateway, len(clients) + 1) if row["outcome"] == "completed"]
            order = [row["tenant"] for row in served]
            assert order[:8].count("few") == 3  # not behind the thirty that came before

    def test_a_queue_is_bounded_in_bytes(self) -> None:
        settings = {"slots": 1, "queue_bytes_max": 50_000}
        with gateway_and_engine(settings) as (gateway, _), Client(gateway.address) as runs, Client(gateway.address) as waits:
            runs.chat(stream=True, **LONG)
            runs.read_until(b'"content":" ')
            big = {"messages": [{"role": "user", "content": "x" * 30_000}]}
            waits.post(CHAT, big)
            wait_until(lambda: waiting(gateway) == 1)
            assert ask(gateway.address, CHAT, big).headers["x-hangup-reason"] == "queue_full"

    def test_images_that_leave_the_queue_take_their_bytes_along(self) -> None:
        """Otherwise the queue would stay full of clients that are gone."""
        url = "data:image/png;base64," + "A" * 30_000
        picture = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
        settings = {"slots": 1, "queue_bytes_max": 50_000}
        with gateway_and_engine(settings) as (gateway, _), Client(gateway.address) as runs:
            runs.chat(stream=True, **LONG)
            runs.read_until(b'"content":" ')
            for _ in range(3):
                with Client(gateway.address) as waits:
                    waits.post(CHAT, picture)
                    wait_until(lambda: waiting(gateway) == 1, what="its place in the queue")
                wait_until(lambda: waiting(gateway) == 0, what="its leave")


class TestLearnedSlots:
    @pytest.mark.alone
    @pytest.mark.parametrize("slots", [1, 4])
    def test_an_engine_that_tells_nothing_is_not_flooded(self, slots: int) -> None:
        """An unknown limit is not a full engine: it gets more calls until it shows its limit; then its own queue stays
        short."""
        behaviour = {"slots": slots, "queue": 1000, "prefill_s": 0.02, "token_s": 0.005}
        with gateway_and_engine({"queue_s": 60}, **behaviour) as (gateway, engine):

            async def all_of_them() -> list[int]:
                calls = []
                for at in range(80):
                    calls.append(asyncio.create_task(call(gateway, 20)))
                    await asyncio.sleep(0.04 / slots if at < 40 else 0)  # three times what it can take, then all at once
                return await asyncio.gather(*calls)

            assert asyncio.run(all_of_them()) == [1] * 80
            stats = engine.stats()
            assert stats["waiting_peak"] <= 40, "what came before its first tokens could be late, and by no means all"
            assert stats["running_peak"] == slots
            assert stats["finished"] == 80
            [backend] = get_json(f"{gateway.admin_url}/api/backends")["backends"]
            assert backend["limited_by"] in ("late_first_tokens", "engine_reports_waiting", "none")

    @pytest.mark.parametrize("likeness", ["", "vllm"])
    def test_an_engine_with_room_gets_every_call_at_once(self, likeness: str) -> None:
        """A burst right after the start, and another one: no call waits and none is refused."""
        with gateway_and_engine({}, slots=500, prefill_s=2.0, token_s=0.005, like=likeness) as (gateway, engine):

            async def burst() -> list[int]:
                return await asyncio.gather(*(call(gateway, 5) for _ in range(150)))

            for _ in range(2):
                assert asyncio.run(burst()) == [1] * 150
            assert engine.stats()["running_peak"] >= 140
            [backend] = get_json(f"{gateway.admin_url}/api/backends")["backends"]
            assert backend["limited_by"] == "none" and backend["limit"] is None


def test_a_flood_is_answered_to_the_last_and_leaves_nothing_behind() -> None:
    """Ten times more calls at once than there is room for; half of the clients leave at random."""
    with gateway_and_engine({"slots": 4, "queue_depth": 20}, slots=4, token_s=0.002, prefill_s=0.005) as (gateway, engine):
        fds = gateway.open_files()

        async def one(index: int) -> str:
            reader, writer = await asyncio.open_connection(*gateway.address)
            body = json.dumps({**BODY, "max_tokens": 5}).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            if index % 2:
                await asyncio.sleep(index % 7 / 100)
                writer.transport.abort()
                return "left"
            answer = await reader.read()
            writer.close()
            return answer[9:12].decode()

        async def flood() -> Counter[str]:
            return Counter(await asyncio.gather(*(one(index) for index in range(1000))))

        got = asyncio.run(flood())
        assert set(got) == {"left", "200", "503"}
        assert got["200"] >= 10
        engine.wait_idle()
        wait_until(lambda: waiting(gateway) == 0 and gateway.open_files() <= fds + 10)
        stats = engine.stats()
        assert stats["prefills_for_gone"] == 0 and stats["waiting_peak"] <= 4
        outcomes = {row["outcome"] for row in gateway.log() if row["event"] == "call_ended"}
        assert outcomes <= {"completed", "shed", "client_gone"}
