"""Engines that do not stop, as real processes on real sockets: what the gateway reports, what it does, and how often."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.linux import proc
from support.processes import Gateway, StandIn, reserved_port
from support.raw import Client, ask
from support.waiting import wait_until

SLOW: dict[str, Any] = {"slots": 4, "prefill_s": 0.02, "token_s": 0.02, "answer_tokens": 3000}
QUICK: dict[str, Any] = {"release_grace_s": 0.5, "prefill_grace_s": 0.5, "abort_backoff_s": 0.1, "health_interval_s": 0.5}
CHAT = "/v1/chat/completions"
HANGUP = f"{sys.executable} -m hangup"


def events(gateway: Gateway, name: str) -> list[dict[str, Any]]:
    return [row for row in gateway.log() if row.get("event") == name]


def steps(gateway: Gateway) -> list[str]:
    return [row["step"] for row in events(gateway, "ladder_step_taken")]


def hang_up_mid_stream(gateway: Gateway, id: str = "left-behind") -> None:
    client = Client(gateway.address)
    client.chat(stream=True, headers={"X-Request-Id": id})
    client.read_until(b"data:")
    client.fin()


def known(gateway: Gateway, count: int = 1) -> None:
    wait_until(lambda: len([r for r in gateway.log() if "recognised" in str(r.get("change"))]) == count, what="recognition")


def test_a_deaf_engine_is_named_told_again_a_few_times_and_quarantined() -> None:
    """No zombie is missed, and the engine is not flooded with aborts."""
    with StandIn(deaf=True, **SLOW) as engine, Gateway(engine.url, **QUICK, abort_again_max=2) as gateway:
        known(gateway)
        hang_up_mid_stream(gateway)
        wait_until(lambda: "quarantined" in steps(gateway), what="the quarantine")
        assert steps(gateway) == ["degraded", "abort", "abort", "quarantined"]
        (zombie,) = events(gateway, "zombie_found")
        assert zombie["id"] == "left-behind" and zombie["since_s"] >= 0.5
        assert gateway.ready() == 503
        before = engine.stats()["abort_requests"]
        assert before == 3  # the first one and two more
        engine.behave(deaf=False, answer_tokens=1)
        wait_until(lambda: engine.stats()["running"] == 1, what="it still runs")
        assert engine.stats()["abort_requests"] == before


def test_every_step_that_is_taken_is_counted() -> None:
    """TGI has no abort: it gets the same time, and that counts as a step."""
    with StandIn(like="tgi", deaf=True, **SLOW) as engine, Gateway(engine.url, **QUICK) as gateway:
        known(gateway)
        hang_up_mid_stream(gateway)
        wait_until(lambda: "quarantined" in steps(gateway), what="the quarantine")

        def counted() -> dict[str, float]:
            shown = (
                (re.fullmatch(r'hangup_ladder_steps_total{.*step="(\w+)"}', name), n) for name, n in gateway.metrics().items()
            )
            return {match[1]: n for match, n in shown if match and n}

        wait_until(lambda: counted() == Counter(steps(gateway)), what="the metric")
        assert counted()["wait"] == 3


def test_trouble_that_ends_leads_back_by_the_canary_without_a_restart() -> None:
    with StandIn(deaf=True, **SLOW | {"answer_tokens": 400}) as engine, Gateway(engine.url, **QUICK) as gateway:
        known(gateway)
        hang_up_mid_stream(gateway)
        wait_until(lambda: "quarantined" in steps(gateway), what="the quarantine")
        wait_until(lambda: steps(gateway)[-1] == "healthy", what="the way back")
        assert steps(gateway)[-2:] == ["canary", "healthy"]
        assert events(gateway, "zombie_gone")[0]["id"] == "left-behind"
        assert ask(gateway.address, CHAT, {"messages": [], "max_tokens": 1}).status == 200


@pytest.mark.alone
@pytest.mark.parametrize(("like", "grace_s"), [("vllm", 2.0), ("llamacpp", 3.0)])
def test_others_are_served_elsewhere_while_one_backend_is_wedged(like: str, grace_s: float) -> None:
    """One slot is busy for ever, spinning on cancels, and blocks the whole engine. All limits have their defaults, and the
    load balancing prefers the wedged engine. After the grace, no new client notices anything."""
    wide = SLOW | {"slots": 64}  # so that there is always room for one more in the wedged one
    with StandIn(like=like, wedge=True, **wide) as stuck, StandIn(like=like, **wide) as good:
        config = "".join(
            f'[[backend]]\nurl = "{engine.url}"\nname = "{name}"\nweight = {weight}\nslots = 64\n'
            for engine, name, weight in ((stuck, "stuck", 100), (good, "good", 1))
        )
        with Gateway(config=config) as gateway, ThreadPoolExecutor(100) as pool:
            known(gateway, 2)
            _drain(gateway, "stuck", "PUT")
            stays = Client(gateway.address)  # with one call the good one has more to do than the other with many
            stays.chat(stream=True)
            stays.read_until(b"data:")
            _drain(gateway, "stuck", "DELETE")
            hang_up_mid_stream(gateway)
            assert len(stuck.seen()) == 1
            left_at = time.monotonic()
            asking = []
            while time.monotonic() - left_at < grace_s + 5:
                asking.append(pool.submit(_served, gateway, time.monotonic() - left_at))
                assert stays.read_some()
                time.sleep(0.1)
            answers = [one.result(120) for one in asking]
            stays.fin()
    missed = [at_s for at_s, served in answers if not served]
    last_s = max(missed, default=0.0)  # calls that had not begun may all have been taken elsewhere
    print(f"\n{like}: {len(missed)} of {len(answers)} were lost to the wedged one, the last {last_s:.2f} s after the hang-up")
    assert last_s < grace_s + 3.0, "all that came in the last two seconds were served"


def _drain(gateway: Gateway, name: str, method: str) -> None:
    request = urllib.request.Request(f"{gateway.admin_url}/api/backends/{name}/drain", headers={"x-hangup": "1"}, method=method)
    urllib.request.urlopen(request, timeout=60).close()


def _served(gateway: Gateway, at_s: float) -> tuple[float, bool]:
    with Client(gateway.address) as client:
        client.sock.settimeout(10)
        client.chat(max_tokens=3)
        try:
            return at_s, client.read_answer().status == 200
        except TimeoutError:
            return at_s, False


def test_a_wedged_engine_of_our_own_is_restarted_and_serves_again(tmp_path: Path) -> None:
    """One backend under --spawn is wedged: service returns by itself, and the aborts are counted."""
    log = tmp_path / "engine.log"
    command = f"{HANGUP} standin --port {{port}} --like llamacpp --wedge --token-s 0.01 --slots 2 --answer-tokens 500"
    config = f'[[backend]]\nurl = "http://127.0.0.1:PORT"\nname = "own"\nspawn = "{command}"\nspawn_log = "{log}"\n'
    with reserved_port() as port, Gateway(config=config.replace("PORT", str(port)), **QUICK) as gateway:
        known(gateway)
        hang_up_mid_stream(gateway)
        wait_until(lambda: steps(gateway)[-1:] == ["healthy"], what="the way back")
        assert ask(gateway.address, CHAT, {"messages": [], "max_tokens": 2}).status == 200
        assert steps(gateway) == ["degraded", *["wait"] * 3, "quarantined", "restarting", "canary", "healthy"]
        pids = [row["pid"] for row in events(gateway, "engine_spawned")]
        assert len(set(pids)) == 2 and not proc(pids[0]).exists()
        gateway.signal(signal.SIGTERM)
        gateway.wait()
        assert not proc(pids[1]).exists()
    assert "fake engine on" in log.read_text()


def test_a_spawned_engine_that_dies_is_started_again_and_one_that_cannot_live_is_not_spun_on() -> None:
    with Gateway(spawn=f"{HANGUP} standin --port {{port}}", **QUICK) as gateway:
        known(gateway)
        (first,) = events(gateway, "engine_spawned")
        _kill(first["pid"])
        wait_until(lambda: len(events(gateway, "engine_spawned")) == 2, what="another one")
        wait_until(lambda: _answers(gateway), what="an answer")
    with Gateway(spawn="/bin/false", **QUICK) as gateway:
        wait_until(lambda: len(events(gateway, "engine_exited")) == 2, what="two deaths")
        assert [row["again_in_s"] for row in events(gateway, "engine_exited")] == [1.0, 2.0]


def test_a_spawned_engine_that_ignores_sigterm_is_killed_with_all_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = tmp_path / "engine.sh"
    script.write_text(f"trap '' TERM\nsleep 1000 &\necho $$ $! > {pids}.new\nmv {pids}.new {pids}\nwait\n")
    with Gateway(spawn=f"/bin/sh {script}", **QUICK, stop_s=0.5) as gateway:
        wait_until(pids.exists, what="the engine and its child")
        own, child = pids.read_text().split()
        assert proc(own).exists() and proc(child).exists()
        signalled_at = time.monotonic()
        gateway.signal(signal.SIGTERM)
        gateway.wait()
        assert time.monotonic() - signalled_at >= 0.5
        wait_until(lambda: not proc(own).exists() and not _lives(child), what="their end")


def _lives(pid: str) -> bool:
    """Return whether a process lives; one that nobody has reaped yet is dead."""
    stat = proc(pid, "stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_reload_that_changes_limits_leaves_a_spawned_engine_alone_and_one_that_changes_its_settings_does_not() -> None:
    command = f"{HANGUP} standin --port {{{{port}}}} --deaf --slots 4 --answer-tokens 5000 --token-s 0.02"
    text = "[limits]\nrelease_grace_s = 0.5\nabort_backoff_s = 0.1\nabort_again_max = {}\n"
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        text += f'[[backend]]\nurl = "http://127.0.0.1:{port}"\nspawn = "{command}"\nweight = {{}}\n'
        gateway = stack.enter_context(Gateway(config=text.format(3, 1)))
        known(gateway)
        client = Client(gateway.address)
        client.chat(stream=True)
        client.read_until(b"data:")
        _reload(gateway, text.format(1, 1))
        assert client.read_some() and len(events(gateway, "engine_spawned")) == 1
        hang_up_mid_stream(gateway)
        wait_until(lambda: "quarantined" in steps(gateway), what="the quarantine")
        assert steps(gateway) == ["degraded", "abort", "quarantined"]  # by the new limits
        client.fin()
        wait_until(lambda: steps(gateway)[-1:] == ["healthy"], what="the way back")
        _reload(gateway, text.format(1, 2))
        wait_until(lambda: len(events(gateway, "engine_spawned")) == 3, what="another process")


def _reload(gateway: Gateway, config: str) -> None:
    assert gateway.config_path is not None
    before = len(events(gateway, "config_reloaded"))
    gateway.config_path.write_text(config)
    gateway.signal(signal.SIGHUP)
    wait_until(lambda: len(events(gateway, "config_reloaded")) > before, what="the reload")


def test_a_restart_command_is_run_with_what_it_needs_to_know(tmp_path: Path) -> None:
    """No live client is harmed: the restart waits for the last one."""
    note = tmp_path / "note"
    with StandIn(deaf=True, **SLOW) as engine:
        command = f'{sys.executable} -c \'open(\\"{note}\\", \\"w\\").write(\\"{{name}} {{port}}\\")\''
        config = f'[[backend]]\nurl = "{engine.url}"\nname = "deaf"\nrestart_command = "{command}"\n'
        with Gateway(config=config, **QUICK) as gateway:
            known(gateway)
            other = Client(gateway.address)
            other.chat(stream=True)
            other.read_until(b"data:")
            hang_up_mid_stream(gateway)
            wait_until(lambda: "quarantined" in steps(gateway), what="the quarantine")
            assert other.read_some() and "restarting" not in steps(gateway)
            other.fin()
            wait_until(lambda: "restarting" in steps(gateway), what="the restart")
            wait_until(lambda: note.exists() and note.read_text(), what="the command's note")
            assert note.read_text() == f"deaf {engine.port}"


def test_each_rung_can_be_turned_off() -> None:
    with StandIn(deaf=True, **SLOW) as engine:
        config = f'[[backend]]\nurl = "{engine.url}"\nname = "deaf"\nabort_again = false\nquarantine = false\n'
        with Gateway(config=config, **QUICK) as gateway:
            known(gateway)
            hang_up_mid_stream(gateway)
            wait_until(lambda: events(gateway, "zombie_found"), what="the zombie")
            assert ask(gateway.address, CHAT, {"messages": [], "max_tokens": 1}).status == 200
            assert steps(gateway) == ["degraded"] and engine.stats()["abort_requests"] == 1


def test_a_stopped_engine_is_left_alone_and_taken_back_when_it_wakes() -> None:
    """After SIGSTOP it does not report what it runs, so it counts as wedged, but no zombie is blamed on it; after SIGCONT, a
    canary brings it back."""
    with StandIn(like="vllm", **SLOW) as engine:
        quick = QUICK | {"status_timeout_s": 0.2, "wedge_s": 1.0, "health_interval_s": 0.3, "failures_max": 100}
        with Gateway(engine.url, **quick) as gateway:
            known(gateway)
            engine.signal(signal.SIGSTOP)
            wait_until(lambda: "quarantined" in steps(gateway), what="the quarantine")
            assert "no status report" in events(gateway, "ladder_step_taken")[-1]["reason"]
            engine.signal(signal.SIGCONT)
            wait_until(lambda: steps(gateway)[-1] == "healthy", what="the way back")
            assert ask(gateway.address, CHAT, {"messages": [], "max_tokens": 1}).status == 200


def test_a_status_page_that_hangs_is_found_without_any_hang_up() -> None:
    with StandIn(like="vllm", **SLOW) as engine, Gateway(engine.url, **QUICK, status_timeout_s=0.2, wedge_s=1.0) as gateway:
        known(gateway)
        engine.behave(status_hangs=True)
        wait_until(lambda: "quarantined" in steps(gateway), what="the quarantine")


def test_an_engine_that_gets_nothing_done_is_found_without_any_hang_up() -> None:
    with StandIn(like="llamacpp", stall_after=2, **SLOW) as engine, Gateway(engine.url, **QUICK, wedge_s=2.0) as gateway:
        known(gateway)
        client = Client(gateway.address)
        client.chat(stream=True)
        client.read_until(b"data:")
        wait_until(lambda: "quarantined" in steps(gateway), what="the quarantine")
        assert "without progress" in events(gateway, "ladder_step_taken")[-1]["reason"]
        client.fin()


def test_an_engine_killed_or_dying_of_an_abort_holds_no_place() -> None:
    with StandIn(crash_on_abort=True, **SLOW) as engine, Gateway(engine.url, **QUICK, slots=1) as gateway:
        known(gateway)
        hang_up_mid_stream(gateway)
        wait_until(lambda: events(gateway, "engine_died_after_abort"), what="the death")
        wait_until(lambda: sum(v for k, v in gateway.metrics().items() if k.startswith("hangup_backend_in_flight")) == 0)
        assert not events(gateway, "zombie_found")


def test_a_zombie_ends_with_its_engine_and_what_comes_in_its_place_is_taken_back() -> None:
    """kill -9 on an engine that somebody else starts again."""
    with (
        reserved_port() as port,
        StandIn(port, deaf=True, **SLOW) as engine,
        Gateway(engine.url, **QUICK) as gateway,
    ):
        known(gateway)
        hang_up_mid_stream(gateway)
        wait_until(lambda: "quarantined" in steps(gateway), what="the quarantine")
        engine.signal(signal.SIGKILL)
        engine.wait()
        with StandIn(port, **SLOW):
            wait_until(lambda: steps(gateway)[-1] == "healthy", what="the way back")
            assert [row["id"] for row in events(gateway, "zombie_gone")] == ["left-behind"]
            assert _answers(gateway)


def test_figures_that_lag_six_seconds_convict_nobody() -> None:
    with StandIn(like="vllm", lag_s=6.0, **SLOW) as engine, Gateway(engine.url, **QUICK) as gateway:
        known(gateway)
        stays = Client(gateway.address)
        stays.chat(stream=True)
        for _ in range(8):
            hang_up_mid_stream(gateway)
        stays.read_until(b"data:")
        until = time.monotonic() + 8
        while time.monotonic() < until:
            assert stays.read_some()
        assert not events(gateway, "zombie_found") and not events(gateway, "orphans_found") and not steps(gateway)
        stays.fin()


@pytest.mark.parametrize("shared", [True, False])
def test_two_gateways_on_one_engine_do_not_convict_each_others_work(shared: bool) -> None:
    """With `shared`, nothing is logged; without it, the other gateway's work is logged as an orphan, and nothing else
    happens."""
    with StandIn(**SLOW) as engine:
        config = f'[[backend]]\nurl = "{engine.url}"\nname = "e"\nshared = {str(shared).lower()}\n'
        with Gateway(config=config, **QUICK) as one, Gateway(config=config, **QUICK) as other:
            known(one)
            known(other)
            theirs = Client(other.address)
            theirs.chat(stream=True)
            theirs.read_until(b"data:")
            until = time.monotonic() + 2.5
            while time.monotonic() < until or not (shared or events(one, "orphans_found")):
                assert theirs.read_some()
            assert not (shared and events(one, "orphans_found"))
            assert not events(one, "zombie_found") and not steps(one)
            theirs.fin()
            engine.wait_idle()


def _answers(gateway: Gateway) -> bool:
    return ask(gateway.address, CHAT, {"messages": [], "max_tokens": 1}).status == 200


def _kill(pid: int) -> None:
    import os

    os.kill(pid, signal.SIGKILL)


def released(gateway: Gateway) -> list[tuple[str, float]]:
    return [(name, value) for name, value in gateway.metrics().items() if name.startswith("hangup_releases_total")]


def test_time_in_which_the_gateway_was_stopped_is_no_part_of_the_grace_period() -> None:
    """It may have been stopped between the end of a call and the close of its connection. Found by `make chaos`, seed 73023: a
    gateway that was stopped twice in a row found a zombie in a sound engine."""
    grace_s, stopped_s = 5.0, 6.0
    with (
        StandIn(deaf=True, **SLOW) as engine,
        Gateway(engine.url, **{**QUICK, "release_grace_s": grace_s}) as gateway,
    ):
        known(gateway)
        hang_up_mid_stream(gateway)
        wait_until(lambda: engine.stats()["abort_requests"], what="the first abort")
        gateway.signal(signal.SIGSTOP)
        time.sleep(stopped_s)
        gateway.signal(signal.SIGCONT)
        (zombie,) = wait_until(lambda: events(gateway, "zombie_found"), what="the zombie")
        assert zombie["since_s"] >= grace_s + stopped_s


def test_an_engine_is_not_blamed_for_time_in_which_the_gateway_itself_was_stopped() -> None:
    """A query was in progress when the process was stopped: its timeout says nothing about the engine. Found by `make
    chaos`, seed 1014: a machine that was paused quarantined its engines when it came back."""
    with (
        StandIn(like="vllm", slots=4, prefill_s=0.02, token_s=0.05, answer_tokens=3000) as engine,
        Gateway(engine.url, **{**QUICK, "prefill_grace_s": 30}, status_timeout_s=2, still_s=1, wedge_s=3) as gateway,
    ):
        known(gateway)
        live = Client(gateway.address)
        live.chat(stream=True, headers={"X-Request-Id": "live"})
        live.read_until(b"data:")
        engine.behave(status_hangs=True)
        hang_up_mid_stream(gateway)
        time.sleep(0.3)  # the question is asked after 20 ms; were it not, there would be nothing to time out
        gateway.signal(signal.SIGSTOP)
        engine.behave(status_hangs=False)
        time.sleep(4)
        gateway.signal(signal.SIGCONT)
        wait_until(lambda: any(value for _, value in released(gateway)), 30, "the engine's word")
        assert steps(gateway) == [] and not events(gateway, "zombie_found")
        live.fin()
