"""Quotas and shares of tenants are of all gateways that share their state, with real processes and a real server."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import time

import pytest

from gateway.test_hosts import LONG, SLOTS, Load, close, engine_and_store, never_too_many, seen
from support.processes import Gateway
from support.raw import Client
from support.redis_server import require_redis
from support.waiting import wait_until


@pytest.fixture(scope="module", autouse=True)
def _needs_redis() -> None:
    require_redis()


def test_a_tenants_quota_is_one_for_all_gateways() -> None:
    key = "k" * 20
    tenant = f"""
    [[tenant]]
    name = "a"
    key_sha256 = ["{hashlib.sha256(key.encode()).hexdigest()}"]
    concurrency_max = 4
    """
    with engine_and_store() as (engine, store), contextlib.ExitStack() as stack:
        backend = f'[[backend]]\nurl = "{engine.url}"\nslots = 32\n'
        gateways = [stack.enter_context(Gateway(config=f'shared_state = "{store.url}"\n{backend}{tenant}')) for _ in range(2)]
        for gateway in gateways:  # all of the quota can be used at one gateway, and not a call more at both
            clients = [Client(gateways[n % 2].address) for n in range(10)] if gateway is gateways[1] else []
            clients = clients or [Client(gateway.address) for _ in range(4)]
            for client in clients:
                client.chat({"Authorization": f"Bearer {key}"}, stream=True, max_tokens=LONG)
            found = sorted(client.read_head()[0] for client in clients)
            assert found == [200] * 4 + [429] * (len(clients) - 4)
            close(*clients)
            engine.wait_idle()
        assert engine.stats()["running_peak"] == 4


def test_tokens_per_minute_are_of_all_gateways_whoever_leads() -> None:
    key = "k" * 20
    digest = hashlib.sha256(key.encode()).hexdigest()
    with engine_and_store() as (engine, store), contextlib.ExitStack() as stack:
        tenant = f'[[tenant]]\nname = "t"\ntokens_per_minute = 600\nkey_sha256 = ["{digest}"]\n'
        config = f'shared_state = "{store.url}"\n[[backend]]\nurl = "{engine.url}"\nslots = 32\n{tenant}'
        gateways = [stack.enter_context(Gateway(config=config)) for _ in range(2)]
        wait_until(lambda: gateways[1].metrics()["hangup_gateways"] == 2)
        began, served, refused = time.monotonic(), 0, [0, 0]
        while min(refused) < 3:  # both refuse
            for number, gateway in enumerate(gateways):
                with Client(gateway.address) as client:
                    client.chat({"Authorization": f"Bearer {key}"}, max_tokens=50)
                    status = client.read_answer().status
                assert status in (200, 429)
                served += status == 200
                refused[number] += status == 429
        refilled = (time.monotonic() - began) * 600 / 60
        assert 8 <= served <= (600 + refilled) / 50 + 3, "each gateway's own quota would be twice as much"
        gateways[0].popen.send_signal(signal.SIGKILL)  # the leader: the next one knows what is left
        seen(gateways[1], "gateway_died")
        with Client(gateways[1].address) as client:
            client.chat({"Authorization": f"Bearer {key}"}, max_tokens=50)
            assert client.read_answer().status in (200, 429)
            quota = (time.monotonic() - began) * 600 / 60
        more = 0
        for _ in range(8):
            with Client(gateways[1].address) as client:
                client.chat({"Authorization": f"Bearer {key}"}, max_tokens=50)
                more += client.read_answer().status == 200
        assert served + more <= (600 + quota) / 50 + 5


def test_tenants_get_their_shares_of_the_whole_wherever_their_calls_are() -> None:
    """One gateway has the calls of one tenant, the other those of another with three times its weight."""
    keys = {"small": "s" * 20, "large": "l" * 20}
    tenants = "".join(
        f'[[tenant]]\nname = "{name}"\nweight = {3 if name == "large" else 1}\n'
        f'key_sha256 = ["{hashlib.sha256(key.encode()).hexdigest()}"]\n'
        for name, key in keys.items()
    )
    with engine_and_store(token_s=0.02) as (engine, store), contextlib.ExitStack() as stack:
        config = f'shared_state = "{store.url}"\n[[backend]]\nurl = "{engine.url}"\nslots = {SLOTS}\n{tenants}'
        gateways = [stack.enter_context(Gateway(config=config)) for _ in range(2)]
        wait_until(lambda: all(g.metrics()["hangup_gateways"] == 2 for g in gateways))
        loads = [
            stack.enter_context(Load([gateway], threads=2 * SLOTS, key=key, tokens=10))
            for gateway, key in zip(gateways, keys.values(), strict=True)
        ]
        before = [load.good for load in loads]
        wait_until(lambda: sum(load.good for load in loads) >= sum(before) + 300, what="300 calls")
        small, large = (load.good - was for load, was in zip(loads, before, strict=True))
        assert 2 <= large / small <= 4.5, "each gateway would use half of the slots"
        assert not loads[0].bad and not loads[1].bad
        never_too_many(engine)
