"""Hang-up → the engine computes nothing more, on real engines, directly and with hangup in between; `-s` shows the figures.

Idleness is told by the engine's processor time, which can be looked at without disturbing it, and confirmed by the engine's own
word where it has one.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from engines.conftest import Engine
from hangup.engines.adapters import ADAPTERS, Seen
from support.processes import Gateway
from support.raw import Client, ask
from support.waiting import wait_until

CHAT = "/v1/chat/completions"
TOKENS = {"llamacpp": 6000, "transformers": 300, "vllm": 2000}  # some ten seconds of work
LONG_PROMPT = {"llamacpp": 1500, "transformers": 300, "vllm": 1500}  # words; a prefill that takes a moment
FIGURES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:generation_tokens_total", "vllm:cache_config")
FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "engines"
_QUIET_SHARE = 0.2  # of a processor


def body(real: Engine, *, stream: bool, words: int = 1) -> dict[str, Any]:
    asked = {"model": real.model, "messages": [{"role": "user", "content": "word " * words}], "stream": stream}
    to_the_end = {} if real.name == "transformers" else {"ignore_eos": True}  # which refuses fields that it does not know
    return asked | {"max_tokens": TOKENS[real.name]} | to_the_end


def busy(real: Engine) -> None:
    before = real.cpu_s()
    wait_until(lambda: real.cpu_s() > before + 0.2, 60, "the engine to be at work")


def seconds_to_idle(real: Engine, limit_s: float, quiet_s: float = 0.3) -> float:
    """From now until it has used next to no processor time for a moment; `inf` if that does not come."""
    start = time.monotonic()
    mark, used = start, real.cpu_s()
    while time.monotonic() - start < limit_s + quiet_s:
        time.sleep(0.01)
        now, cpu = time.monotonic(), real.cpu_s()
        if cpu - used > _QUIET_SHARE * (now - mark) + 0.02:
            mark, used = now, cpu
        elif now - mark >= quiet_s:
            return mark - start
    return float("inf")


def settle(real: Engine) -> None:
    """What an earlier call left behind is done, however little of the machine it gets."""
    assert seconds_to_idle(real, 60, quiet_s=1.5) < 60


def leave(real: Engine, address: tuple[str, int], mode: str, limit_s: float) -> float:
    settle(real)
    client = Client(address)
    words = LONG_PROMPT[real.name] if mode == "before the first token" else 1
    client.post(CHAT, body(real, stream=mode != "non-streaming", words=words))
    if mode == "mid-stream":
        client.read_until(b"content")
        client.read_some()
    else:
        busy(real)
    client.fin()
    return seconds_to_idle(real, limit_s)


@pytest.mark.parametrize("mode", ["mid-stream", "before the first token", "non-streaming"])
def test_an_engine_stops_when_its_client_hangs_up(real: Engine, mode: str) -> None:
    direct_s = leave(real, real.address, mode, 4.0)
    with Gateway(real.url) as gateway:
        wait_until(lambda: any(f"as {real.name}" in str(row.get("change")) for row in gateway.log()), what="recognition")
        through_s = leave(real, gateway.address, mode, 4.0)
        wait_until(lambda: released(gateway) == 1, 8, "the release")
        assert not [row for row in gateway.log() if row.get("event") in ("zombie", "orphans", "ladder")]
    print(f"\n| {real.name} | {mode} | {shown(direct_s)} | {shown(through_s)} |")
    assert through_s <= max(1.0, direct_s * 1.5)


def test_llama_server_with_other_traffic(llama_server: Engine) -> None:
    """While anyone else has traffic it never notices a lost non-streaming client; through hangup it stops, say its slots."""
    real = llama_server
    times = {}
    with Gateway(real.url) as gateway:
        wait_until(lambda: any("as llamacpp" in str(row.get("change")) for row in gateway.log()), what="recognition")
        for way, address in (("direct", real.address), ("through hangup", gateway.address)):
            settle(real)
            other = Client(address)
            other.post(CHAT, body(real, stream=True))
            other.read_until(b"content")
            lost = Client(address)
            lost.post(CHAT, body(real, stream=False))
            time.sleep(1.0)
            lost.fin()
            left_at = time.monotonic()
            times[way] = float("inf")
            while time.monotonic() - left_at < 5.0:
                _read_for(other, 1.25)  # no faster than it can bear to be asked
                if sum(row["is_processing"] for row in json.loads(real.get("/slots"))) <= 1:
                    times[way] = time.monotonic() - left_at
                    break
            other.fin()
        wait_until(lambda: released(gateway) == 2, 8, "both releases")
    direct, through = shown(times["direct"]), shown(times["through hangup"])
    print(f"\n| llamacpp | non-streaming, others busy | {direct} | {through}, at the first look |")
    assert times["through hangup"] < 2.0


def test_nothing_is_sent_to_a_full_engine_and_a_lost_waiter_never_reaches_it(llama_server: Engine) -> None:
    """Queued: the queue is hangup's own, so that there is nothing to cancel in the engine."""
    with Gateway(llama_server.url) as gateway:
        wait_until(lambda: any("as llamacpp" in str(row.get("change")) for row in gateway.log()), what="recognition")
        running = [Client(gateway.address) for _ in range(4)]
        for client in running:
            client.post(CHAT, body(llama_server, stream=True))
            client.read_until(b"content")
        waiting = Client(gateway.address)
        waiting.post(CHAT, body(llama_server, stream=False), {"X-Request-Id": "waiter"})
        wait_until(lambda: gateway.metrics()["hangup_queue_depth"] == 1, what="the waiting call")
        waiting.fin()
        assert gateway.call_log("waiter")["backend"] in ("", None)
        for client in running:
            client.fin()


def test_the_wire_is_as_captured(real: Engine) -> None:
    """Writes what the adapters rely on into the fixtures, when asked to (HANGUP_CAPTURE=1), else compares its shape."""
    import os
    import urllib.request

    adapter = ADAPTERS[real.name]
    settle(real)
    captured: dict[str, Any] = {"engine": real.name, "server": "", "models": "{}"}
    if real.name != "transformers":  # which looks for its list on a hub
        with urllib.request.urlopen(f"{real.url}/v1/models", timeout=10) as answer:
            captured |= {"server": answer.headers.get("server", ""), "models": answer.read().decode()}
    if adapter.status_path:
        captured["idle"] = real.get(adapter.status_path)
        client = Client(real.address)
        client.post(CHAT, body(real, stream=True))
        client.read_until(b"content")
        time.sleep(1.1)
        captured |= {"busy": real.get(adapter.status_path), "running": 1}
        client.fin()
        status = adapter.read_status(Seen(200, "", captured["busy"].encode()))
        assert status is not None and status.running == 1
    for name in ("idle", "busy"):
        if captured.get(name, "").startswith("#"):  # of hundreds of figures, those that the adapter looks at
            captured[name] = "\n".join(line for line in captured[name].splitlines() if line.startswith(FIGURES)) + "\n"
    if os.environ.get("HANGUP_CAPTURE"):
        FIXTURES.mkdir(parents=True, exist_ok=True)
        text = json.dumps(captured, indent=1).replace(real.model, "tiny")
        (FIXTURES / f"{real.name}.json").write_text(text + "\n")
    settle(real)


def test_an_assembled_answer_has_what_a_whole_one_has(real: Engine) -> None:
    """Every field of the engine's own non-streaming answer is in the one that hangup puts together."""
    asked = body(real, stream=False) | {"max_tokens": 3}
    whole = ask(real.address, CHAT, asked).json()
    with Gateway(real.url) as gateway:
        wait_until(lambda: any(f"as {real.name}" in str(row.get("change")) for row in gateway.log()), what="recognition")
        ours = ask(gateway.address, CHAT, asked).json()
    missing = paths(whole) - paths(ours)
    assert not {path for path in missing if "timings" not in path and "__verbose" not in path}, missing


def paths(value: Any, at: str = "") -> set[str]:
    """The names of all fields, at any depth."""
    if isinstance(value, list):
        return set().union(*(paths(item, f"{at}[]") for item in value)) if value else set()
    if not isinstance(value, dict):
        return {at}
    return {at}.union(*(paths(item, f"{at}.{name}") for name, item in value.items()))


def released(gateway: Gateway) -> float:
    return sum(value for name, value in gateway.metrics().items() if name.startswith("hangup_releases_total"))


def shown(seconds: float) -> str:
    """Below what a clock of ten milliseconds and a step of the engine can tell, only that."""
    return "not within 4 s" if seconds == float("inf") else f"{seconds:.2f} s" if seconds > 0.05 else "< 0.05 s"


def _read_for(client: Client, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert client.read_some()
        client.buffer = b""
