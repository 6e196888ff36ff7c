"""The stand-in engine does what its flags say: tests and benchmarks measure against it."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request

import pytest

from chaos.client import talk
from hangup.cli.main import main
from hangup.fake_engine.engine import EXTRA_USAGE_TOKENS, Behaviour, FakeEngine, FakeWork
from hangup.fake_engine.profiles import PROFILES
from support.processes import StandIn, post_json
from support.waiting import soon, wait_until


def work(slot: int | None = None) -> FakeWork:
    new = FakeWork("id", 1, 5, 1, lambda _: None, lambda: None)
    new.wanted_slot = slot
    return new


def engine(**behaviour: int) -> FakeEngine:
    return FakeEngine(Behaviour(**behaviour), crash=lambda: None)  # type: ignore[arg-type]


def test_more_than_slots_and_queue_are_refused_even_before_a_step() -> None:
    full = engine(slots=2, queue=1)
    assert [full.submit(work()) for _ in range(5)] == [True, True, True, False, False]
    assert full.counters.refused == 2


def test_slots_are_given_in_order_and_a_wanted_one_is_waited_for() -> None:
    fake = engine(slots=3)
    first, pinned, blocked, last = work(), work(2), work(2), work()
    for one in (first, pinned, blocked, last):
        fake.submit(one)
    fake._schedule()
    assert [one.slot for one in (first, pinned, blocked, last)] == [0, 2, -1, 1]
    assert list(fake.waiting) == [blocked]
    fake.running.remove(pinned)
    fake._schedule()
    assert blocked.slot == 2 and not fake.waiting


def test_an_engine_that_speculates_gets_stuck_in_its_draft_loop() -> None:
    asyncio.run(_gets_stuck_in_its_draft_loop())


async def _gets_stuck_in_its_draft_loop() -> None:
    """A step drafts four tokens and accepts half of them. A hang-up during an answer is never read; the drafts go on."""
    fake = engine(slots=2, draft=4, prefill_s=0, wedge=True)
    answering, waiting = work(), work()
    answering.length = 100
    fake.submit(answering)
    fake.step()
    assert (answering.computed, fake.counters.tokens, fake.counters.drafted) == (3, 3, 4)
    fake.submit(waiting)
    fake.client_gone(waiting)
    assert waiting.ended and not fake.wedged, "nothing is drafted for a call that waits"
    fake.client_gone(answering)
    assert fake.wedged and not answering.ended
    fake.abort("id")
    fake.step()
    assert (answering.computed, fake.counters.drafted, fake.counters.cancels_unread) == (3, 8, 2)


def test_a_llama_server_in_its_draft_loop_is_healthy_and_tells_nothing() -> None:
    asyncio.run(_is_healthy_and_tells_nothing())


async def _is_healthy_and_tells_nothing() -> None:
    profile, fake = PROFILES["llamacpp"], engine(draft=4)
    page = profile.page("/slots", fake)
    assert page is not None and json.loads(page[2])[0]["speculative"] is True
    assert profile.answers("/slots", fake)
    fake.wedged = True
    assert not profile.answers("/slots", fake) and not profile.answers("/metrics", fake) and profile.answers("/props", fake)


@pytest.mark.parametrize(("retry_after_s", "told"), [(0.0, None), (3.0, "3")])
def test_a_full_engine_answers_as_it_was_told(retry_after_s: float, told: str | None) -> None:
    with StandIn(like="openai", slots=0, queue=0, full_status=429, retry_after_s=retry_after_s) as standin:
        with pytest.raises(urllib.error.HTTPError) as refusal:
            post_json(f"{standin.url}/v1/chat/completions", {"messages": []})
        assert refusal.value.code == 429 and refusal.value.headers["retry-after"] == told
        assert b"rate_limit_error" in refusal.value.read()


def test_embeddings_take_their_time_and_count_as_running() -> None:
    with StandIn(like="vllm", embed_s=4.0, cache_tokens=32_000) as standin:

        def metrics() -> str:
            return str(urllib.request.urlopen(f"{standin.url}/metrics", timeout=60).read().decode())

        def running(count: int) -> bool:
            return f'num_requests_running{{engine="0",model_name="standin"}} {count}.0' in metrics()

        answers: list[int] = []
        given = {"model": "standin", "input": ["a", "b", "c"]}
        asked = threading.Thread(
            target=lambda: answers.append(len(post_json(f"{standin.url}/v1/embeddings", given)["data"])), daemon=True
        )
        asked.start()
        wait_until(lambda: running(3), what="three inputs at work")
        asked.join(60)
        assert answers == [3] and running(0)
        assert 'num_gpu_blocks="2000"' in metrics() and "kv_cache_usage_perc" in metrics()


def test_one_that_says_nothing_of_itself_is_any_engine(capsys: pytest.CaptureFixture[str]) -> None:
    with StandIn(like="openai") as standin:
        assert main(["doctor", standin.url]) == 0
    assert "any OpenAI-compatible engine" in capsys.readouterr().out


def test_peaks_start_anew() -> None:
    fake = engine(slots=1, queue=9)
    for _ in range(5):
        fake.submit(work())
    assert fake.counters.waiting_peak == 5
    fake.waiting.clear()
    fake.reset_peaks()
    fake.submit(work())
    assert fake.counters.waiting_peak == 1


class TestLies:
    def test_an_abort_that_is_answered_and_not_done(self) -> None:
        with StandIn(like="vllm", token_s=0.02, answer_tokens=400, lies="aborts") as standin:
            asked = {"messages": [{"role": "user", "content": "x"}], "stream": True}
            request = urllib.request.Request(f"{standin.url}/v1/chat/completions", json.dumps(asked).encode())
            request.add_header("x-request-id", "mine")
            with urllib.request.urlopen(request, timeout=60):
                wait_until(lambda: standin.stats()["running"] == 1, what="it to run")
                named = json.dumps({"request_ids": ["chatcmpl-mine"]}).encode()
                assert urllib.request.urlopen(f"{standin.url}/abort_requests", named, timeout=60).status == 200
                assert standin.stats()["running"] == 1 and standin.stats()["abort_requests"] == 1

    def test_figures_that_do_not_move_or_cannot_be(self) -> None:
        with StandIn(like="vllm") as standin:

            def running() -> str:
                text = urllib.request.urlopen(f"{standin.url}/metrics", timeout=60).read().decode()
                return str(text.splitlines()[0].rpartition(" ")[2])

            standin.behave(lies="frozen")
            assert running() == "0.0"
            standin.behave(token_s=0.05, answer_tokens=400)
            asked = json.dumps({"messages": [], "stream": True}).encode()
            with urllib.request.urlopen(f"{standin.url}/v1/chat/completions", asked, timeout=60):
                wait_until(lambda: standin.stats()["running"] == 1, what="it to run")
                assert running() == "0.0"
                standin.behave(lies="nonsense")
                assert running() == "-3.0"
                standin.behave(lies="")
                assert running() == "1.0"

    def test_an_answer_that_is_over_and_goes_on_and_tells_too_much(self) -> None:
        with StandIn(token_s=0.02, lies="done,usage") as standin:
            answer = post_json(f"{standin.url}/v1/chat/completions", {"messages": [], "max_tokens": 2})
            assert answer["usage"]["completion_tokens"] == 2 + EXTRA_USAGE_TOKENS
            assert len(answer["choices"][0]["message"]["content"].split()) == 2
            assert standin.stats()["running"] == 1, "it works on"

    def test_only_known_ones(self) -> None:
        with StandIn() as standin, pytest.raises(urllib.error.HTTPError):
            standin.behave(lies="all")


def test_a_whole_number_of_seconds_does_not_make_whole_numbers_of_all_that_follow() -> None:
    behaviour = Behaviour()
    behaviour.change({"prefill_s": 10})
    behaviour.change({"prefill_s": 0.05})
    assert behaviour.prefill_s == 0.05
    with pytest.raises(ValueError, match="slots must be of type int"):
        behaviour.change({"slots": 1.5})


def test_a_websocket_sends_texts_back_and_is_counted() -> None:
    async def converse(port: int) -> None:
        socket = await talk(port, "x")
        assert socket.status == 101
        for text in ("hello", "x" * 3000, ""):
            assert await socket.ask(text) == text
        assert (await asyncio.to_thread(standin.stats))["websockets"] == 1
        await socket.leave("close", in_the_midst=True)

    with StandIn() as standin:
        asyncio.run(converse(standin.port))
        wait_until(lambda: standin.stats()["websockets"] == 0)


def hung_up(made: FakeEngine, count: int) -> list[FakeWork]:
    """Make calls that have a slot and whose clients hang up one after another."""
    calls = [work() for _ in range(count)]
    for call in calls:
        made.submit(call)
    made.step()
    for call in calls:
        made.client_gone(call)
    return calls


def test_a_half_deaf_engine_ignores_every_second_hang_up_or_some_calls() -> None:
    assert [call.ended for call in hung_up(engine(slots=4, deaf_every=2), 4)] == [True, False, True, False]
    to_prefill = FakeEngine(Behaviour(slots=2, deaf_to="prefill,whole"), crash=lambda: None)
    assert [call.ended for call in hung_up(to_prefill, 2)] == [False, False]
    with pytest.raises(ValueError, match="deaf_to: choose from"):
        Behaviour().change({"deaf_to": "music"})


def test_a_late_engine_notices_a_hang_up_later() -> None:
    async def play() -> None:
        made = FakeEngine(Behaviour(late_s=0.01), crash=lambda: None)
        (call,) = hung_up(made, 1)
        assert not call.ended
        await soon(lambda: call.ended)
        assert made.counters.aborted == 1

    asyncio.run(play())
