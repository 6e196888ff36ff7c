"""A client disconnects during a prefill that takes seconds: no engine can be stopped there.

The next call therefore waits until the engine has finished, on better evidence than a closed socket.
"""

from __future__ import annotations

import time

from real_engines.real import CHAT, Engine, accused, recognised, released, settle, until_idle, wait_busy
from support.processes import Gateway
from support.raw import Client
from support.waiting import wait_until

WORDS = {"llamacpp": 3000, "vllm": 6000}  # five seconds and more


def leave_in_prefill(real: Engine, address: tuple[str, int]) -> None:
    settle(real)
    client = Client(address)
    client.post(CHAT, real.body(stream=True, words=WORDS[real.name]))
    wait_busy(real, 1.0)  # more than it takes to read the words
    client.fin()


def through_with_it(real: Engine, looks_s: float = 0.5) -> bool:
    """Return whether the engine is idle now: llama-server reports it, and vLLM's figures do not show it."""
    before = real.cpu_s()
    time.sleep(looks_s)
    return real.at_work_on() == 0 if real.name == "llamacpp" else real.cpu_s() - before < 0.2 * looks_s


def test_no_call_is_sent_to_a_place_on_the_word_of_the_socket(slow_reader: Engine) -> None:
    real = slow_reader
    leave_in_prefill(real, real.address)
    direct = until_idle(real, 90, quiet_s=1.0)
    with Gateway(real.url, slots=1, queue_s=90, prefill_grace_s=90) as gateway:
        recognised(gateway, real)
        leave_in_prefill(real, gateway.address)
        left_at = time.monotonic()
        following = Client(gateway.address)
        following.post(CHAT, real.body(stream=False, tokens=2))
        wait_until(lambda: gateway.metrics()["hangup_queue_depth"] == 1, what="the next call in the queue")
        while True:
            looked_at = time.monotonic()
            waiting = gateway.metrics()["hangup_queue_depth"]
            if through_with_it(real):
                break
            assert waiting == 1, "sent to an engine that is still at the prefill"
        busy_s = looked_at - left_at
        assert following.read_answer().status == 200
        served_s = time.monotonic() - left_at
        following.fin()
        assert released(gateway) == 1 and not accused(gateway)
    words = WORDS[real.name]
    print(f"\n| {real.name} | in a prefill of {words} words | {direct} | {busy_s:.1f} s, next call done {served_s:.1f} s |")
    assert busy_s > 0.5, "the prefill was too short to prove anything"
