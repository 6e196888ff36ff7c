"""The gateway process itself is paused for a while: it must not blame clients or engines for that."""

from __future__ import annotations

import signal
import time

from support.processes import Gateway, gateway_and_engine
from support.raw import Client


def stop_for(gateway: Gateway, seconds: float) -> None:
    gateway.signal(signal.SIGSTOP)
    time.sleep(seconds)  # longer than the limits that would strike
    gateway.signal(signal.SIGCONT)


def test_streams_go_on_afterwards() -> None:
    """Their tokens waited in the socket all the time."""
    with gateway_and_engine({"gap_s": 3, "first_token_s": 60}, token_s=0.02) as (gateway, _):
        clients = [Client(gateway.address) for _ in range(5)]
        for number, client in enumerate(clients):
            client.chat({"X-Request-Id": f"stream-{number}"}, stream=True, max_tokens=150, ignore_eos=True)
            client.read_until(b"data: ")
        stop_for(gateway, 4)
        for number, client in enumerate(clients):
            assert client.read_until(b"data: [DONE]")
            assert gateway.call_log(f"stream-{number}")["outcome"] == "completed"
            client.fin()


def test_a_body_that_came_meanwhile_is_read() -> None:
    with gateway_and_engine({"body_idle_s": 3}, token_s=0.001) as (gateway, _), Client(gateway.address) as client:
        body = b'{"messages":[],"max_tokens":1}'
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body[:5])
        gateway.signal(signal.SIGSTOP)
        client.send(body[5:])
        time.sleep(4)
        gateway.signal(signal.SIGCONT)
        assert client.read_answer().status == 200
