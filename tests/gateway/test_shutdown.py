"""Shutdown: no earlier failure keeps calls from their last bytes, or their lines from the log."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import signal
import subprocess
from typing import Any

import pytest

from hangup.config import BackendSettings, LimitSettings
from hangup.core import reasons
from hangup.core.call import Call
from hangup.gateway.backends import aborts
from hangup.gateway.backends.backend import Backend
from hangup.gateway.http.head import RequestHead
from hangup.gateway.kinds.live import LiveCall
from hangup.gateway.request_policy import IncomingRequest
from support.house import House
from support.processes import HANGUP, Gateway, StandIn, gateway_and_engine
from support.raw import Client
from support.waiting import PATIENCE_S, wait_until


def test_a_form_that_cannot_be_read_leaves_no_call_behind() -> None:
    with StandIn() as engine, Gateway(engine.url, drain_s=600) as gateway:
        for length in (257, 300, 5000):
            with Client(gateway.address) as client:
                client.post("/v1/files", b"x", {"Content-Type": f"multipart/form-data; boundary={'b' * length}"})
                client.buffer = b""
            with Client(gateway.address) as client:
                head = f"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary={'b' * length}\r\n"
                client.send(head.encode() + b"content-length: 1\r\n\r\nx")
                assert client.read_answer().status == 400
        wait_until(lambda: not any(value for name, value in gateway.metrics().items() if "calls_live" in name))
        gateway.signal(signal.SIGTERM)
        assert gateway.wait() == 0  # not drain_s


def test_a_broken_call_spoils_no_other_ones_end() -> None:
    """This holds whatever its client does on the Close frame."""

    class Broken:
        peer, http11, stalled, will_close = "broken", True, False, False

        def _fail(self, *_: object, **__: object) -> None:
            raise RuntimeError("the handler is closed")

        begin = send = write = flush = finish = break_off = drop = set_due = close_after_this = _fail

    async def run() -> None:
        async with House() as house:
            gateway = house.gateway
            broken: Any = Broken()
            head = RequestHead(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", count_max=9, url_bytes_max=9)
            for number in range(3):
                call, request = Call(f"broken-{number}", 0.0), IncomingRequest(head, gateway.limits, None)
                gateway.registry.add(LiveCall(gateway.ports, broken, call, request))
            ended = len(gateway.registry.ended)
            port = house.listener.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            body = b'{"messages":[],"stream":true,"model":"slow"}'
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            await reader.readuntil(b"data: ")
            gateway.end_all(reasons.DRAINED)
            assert b'"drain_s"' in await asyncio.wait_for(reader.read(), 60)
            writer.close()
            await writer.wait_closed()
            assert not gateway.registry.live
            assert len(gateway.registry.ended) == ended + 4
            await house.at_rest()

    asyncio.run(run())


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_whoever_comes_during_the_drain_is_sent_elsewhere(method: str) -> None:
    with gateway_and_engine({"drain_s": 600}, token_s=0.05) as (gateway, _), Client(gateway.address) as busy:
        busy.chat(stream=True, ignore_eos=True)
        busy.read_until(b"data: ")
        gateway.signal(signal.SIGTERM)
        wait_until(lambda: any(row["event"] == "drain_started" for row in gateway.log()))
        with Client(gateway.address) as client:
            client.send(f"{method} /v1/models HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode())
            got = client.read_answer()
            assert (got.status, got.headers["connection"]) == (503, "close")
            assert client.closed_within()
        busy.fin()
        assert gateway.wait() == 0


@pytest.mark.parametrize("answers", [True, False])
def test_aborts_under_way_reach_their_engine_before_the_process_ends(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborts, "CLOSE_S", 60.0 if answers else 0.05)

    async def run() -> None:
        heard: list[bytes] = []

        async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError):
                heard.append((await reader.readuntil(b"\r\n")).split()[1])
                if not answers:
                    await reader.read()  # until the other side gives up
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

        async with await asyncio.start_server(engine, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            loop = asyncio.get_running_loop()
            backend = Backend(BackendSettings(url=url, engine="sglang"), LimitSettings(), loop)
            sender = aborts.Aborts()
            assert sender.stop(backend, "call-1", None)
            await asyncio.wait_for(sender.close(), 30)
            assert sender.failed == 0 and (heard == [b"/abort_request"] or not answers)
            backend.pool.close()

    asyncio.run(run())


@pytest.mark.parametrize(("reader", "workers"), [("gone", 1), ("asleep", 1), ("gone", 2)])
def test_a_stderr_that_nobody_reads_costs_no_call_its_drain(reader: str, workers: int) -> None:
    """The terminal was closed, or a pipe's reader died or does not read: a reload and the drain have something to say."""
    read_end, write_end = os.pipe()
    with StandIn(token_s=0.1, answer_tokens=30) as engine:
        settings = ["--upstream", engine.url, "--drain-s", "600", "--workers", str(workers), "--jobs", "none"]
        command = [*HANGUP, "serve", "--port", "0", "--admin-port", "0", *settings]
        popen = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=write_end)
        try:
            told = b""
            while (serving := re.search(rb"serving http://127.0.0.1:(\d+) ", told)) is None:
                assert select.select([read_end], [], [], PATIENCE_S)[0], told
                told += os.read(read_end, 4096)
            with Client(("127.0.0.1", int(serving[1]))) as client:
                client.chat(stream=True)
                client.read_until(b"data: ")
                if reader == "gone":
                    os.close(read_end)
                while reader == "asleep" and select.select([], [write_end], [], 0)[1]:
                    os.write(write_end, bytes(select.PIPE_BUF))
                popen.send_signal(signal.SIGHUP)
                popen.send_signal(signal.SIGTERM)
                assert b"data: [DONE]" in client.read_until(b"\r\n0\r\n\r\n"), "the whole stream"
            assert popen.wait(PATIENCE_S) == 0
        finally:
            popen.kill()
            popen.wait(PATIENCE_S)
            os.close(write_end)
            if reader != "gone":
                os.close(read_end)
