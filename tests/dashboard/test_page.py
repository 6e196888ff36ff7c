"""The dashboard in a real browser (Debian's Chromium): it renders, updates, kills, survives a restart, and is accessible.

`make test-dashboard` installs what it needs and fails without it; otherwise these tests are skipped if there is no browser.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from admin.test_api import admin, live, streaming
from dashboard.browsing import Page, opened, words
from support import jobs
from support.processes import Gateway, StandIn, gateway_and_engine
from support.redis_server import RedisServer, require_redis
from support.waiting import wait_until


def test_a_job_is_shown_followed_and_cancelled_in_the_engine(browser: Any) -> None:
    with gateway_and_engine({"slots": 8}, slots=8, token_s=0.05, answer_tokens=5) as (gateway, engine):
        sdk = jobs.client(gateway.url)
        id = jobs.start_batch(sdk, [jobs.line(f"r{n}", max_tokens=5) for n in range(400)])
        with opened(browser, gateway) as page:
            row = page.locator(f'#jobs [data-key="{id}"]')
            row.filter(has_text="running").wait_for()
            wait_until(lambda: page.wait_for_timeout(50) or not row.locator("td").nth(3).inner_text().startswith("0 %"))
            assert "/v1/chat/completions" in row.inner_text() and "400" in row.inner_text()
            page.on("dialog", lambda dialog: dialog.accept())
            row.get_by_role("button").click()
            page.locator("#done").filter(has_text=f"Job {id} is cancelled").wait_for()
            row.wait_for(state="detached")
        assert engine.wait_idle()["running"] == 0
        assert sdk.batches.retrieve(id).status == "cancelled"


def test_a_gateway_that_does_not_answer_is_named(browser: Any) -> None:
    require_redis()
    with StandIn() as engine, RedisServer() as store, contextlib.ExitStack() as stack:
        shared: dict[str, Any] = {"shared_state": store.url, "slots": 8, "gateway_silence_s": 300}
        first, second = (stack.enter_context(Gateway(engine.url, **shared)) for _ in range(2))
        wait_until(lambda: first.metrics()["hangup_gateways"] == 2)
        with opened(browser, first) as page:
            second.popen.send_signal(signal.SIGSTOP)
            page.locator("#alarms p").filter(has_text="1 gateway did not answer").wait_for()
            second.popen.send_signal(signal.SIGCONT)
            page.locator("#alarms p").wait_for(state="detached")


def test_a_live_call_is_shown_followed_and_killed_in_the_engine(browser: Any, pair: tuple[Gateway, StandIn]) -> None:
    gateway, engine = pair
    before = engine.stats()["aborted"]
    with opened(browser, gateway) as page, streaming(gateway, "shown") as client:
        row = page.locator('#calls-body [data-key="shown"]')
        row.filter(has_text="answering").wait_for()
        assert "default" in row.inner_text()
        tokens = row.locator('[data-label="Tokens out"]')
        first = int(tokens.inner_text())
        wait_until(lambda: page.wait_for_timeout(50) or int(tokens.inner_text()) > first)
        page.on("dialog", lambda dialog: dialog.accept())
        kill = page.get_by_role("button", name="Kill shown")
        kill.focus()
        page.keyboard.press("Enter")
        page.get_by_text("Killed call shown, connection to the engine cut, abort sent. Engine: stopped, verified.").wait_for()
        row.wait_for(state="detached")
        engine.wait_idle()
        assert engine.stats()["aborted"] == before + 1
        assert client.closed_within()
        page.locator('#left [data-key="shown"]', has_text="stopped, verified").wait_for()


def test_a_deaf_engine_climbs_the_ladder_and_its_zombies_have_their_story(browser: Any) -> None:
    """The engine goes from healthy to quarantined, with the reason; once it obeys again, the canary brings it back."""
    settings = {"release_grace_s": 0.3, "abort_again_max": 1, "abort_backoff_s": 0.05, "counters_interval_s": 0.2}
    with (
        gateway_and_engine(settings, slots=2, token_s=0.01, like="llamacpp") as (gateway, engine),
        opened(browser, gateway) as page,
    ):
        page.locator("#backends td.state.serving").wait_for()
        engine.behave(deaf=True)
        with streaming(gateway, "haunts"):
            page.locator('#calls-body [data-key="haunts"]').wait_for()
        page.locator("#backends td.state.quarantined").wait_for()
        assert "haunts in slot" in words(page, '#backends td[data-label="Why"]')
        story = page.locator('#zombies [data-key="haunts"]')
        story.filter(has_text="still running").wait_for()
        cells = story.locator("td").all_inner_texts()
        assert (
            cells[1] == "default"
            and cells[2] in ("the client closed", "the client reset")
            and cells[4] in ("0", "1")
            and cells[7] == "1 ×"
        )
        assert int(cells[6].replace(",", "")) > 0
        engine.behave(deaf=False, cut_after=1)  # which ends what runs
        story.filter(has_text="stopped, verified after").wait_for()
        engine.behave(cut_after=0)
        page.locator("#backends td.state.serving").wait_for()


def test_an_engine_that_never_answered_is_not_called_serving(browser: Any) -> None:
    with Gateway("http://127.0.0.1:9", health_interval_s=0.2) as gateway, opened(browser, gateway) as page:
        page.locator("#backends td.state.unanswered, #backends td.state.down").wait_for()
        page.locator("#backends td.why", has_text="cannot connect").wait_for()
        page.locator("#backends td.state.down").wait_for()
        assert page.title() == "⚠ 1 backend out – hangup"


def test_a_wedged_engine_is_quarantined_for_being_wedged(browser: Any) -> None:
    settings = {"release_grace_s": 30, "wedge_s": 0.5, "counters_interval_s": 0.2}
    with (
        gateway_and_engine(settings, slots=2, token_s=0.01, wedge=True, like="llamacpp") as (gateway, _),
        opened(browser, gateway) as page,
    ):
        with streaming(gateway, "stuck"):
            page.locator('#calls-body [data-key="stuck"]').wait_for()
        page.locator("#backends td.state.quarantined").wait_for()
        page.locator("#backends td.why", has_text="without progress").wait_for()
        page.locator("#events td", has_text="quarantined: gets no calls").first.wait_for()


def test_an_alarm_is_shown_as_long_as_it_lasts(browser: Any) -> None:
    settings = {"counters_interval_s": 0.2, "divergence_window_s": 1, "divergence_hold_s": 0.5, "slots": 8}
    with (
        gateway_and_engine(settings, slots=8, token_s=0.002, deaf=True) as (gateway, engine),
        opened(browser, gateway) as page,
    ):
        (name,) = [row["name"] for row in admin(gateway, "GET", "/api/backends")[1]["backends"]]
        page.get_by_text("ready").first.wait_for()
        assert page.locator("#alarms p").count() == 0
        for at in range(8):
            with streaming(gateway, f"left-{at}"):
                pass
        page.locator("#alarms p", has_text=name).wait_for(timeout=60_000)
        assert "alarm" in page.title() and "c4281c" in page.locator("#icon").get_attribute("href")
        assert page.locator("#backends td.state.bad").count() == 1, "the state does not contradict the alarm"
        page.locator("#events td", has_text="alarm raised").first.wait_for()
        admin(gateway, "PUT", f"/api/backends/{name}/drain")
        engine.popen.terminate()  # the zombies end with it
        page.locator("#alarms p").wait_for(state="detached", timeout=60_000)
        page.locator("#events td", has_text="alarm ended").first.wait_for()


def test_the_picture_and_the_tables(browser: Any, pair: tuple[Gateway, StandIn]) -> None:
    gateway, _ = pair
    with opened(browser, gateway) as page, streaming(gateway, "drawn"):
        page.get_by_text("received from the engines").first.wait_for()
        assert page.locator("#chart canvas").count() == 1
        assert page.locator("#backends td.state.serving").count() == 1
        with streaming(gateway, "leaves"):
            page.locator('#calls-body [data-key="leaves"]').wait_for()
        page.locator('#refusals [data-key="the client hung up"]').wait_for()
        page.locator('#money [data-key="total"]').wait_for()
        page.get_by_role("button", name="Drain ").first.click()
        page.get_by_text("drained and gets no new calls").wait_for()
        page.get_by_role("button", name="Undrain ").click()
        page.get_by_text("is no longer drained").wait_for()


def test_it_sorts_and_filters(browser: Any, pair: tuple[Gateway, StandIn]) -> None:
    gateway, _ = pair
    with opened(browser, gateway) as page, streaming(gateway, "one"), streaming(gateway, "two"):
        page.locator('#calls-body [data-key="two"]').wait_for()
        page.get_by_role("button", name="Age").click()
        wait_until(lambda: page.wait_for_timeout(50) or page.locator("#calls-body tr").first.get_attribute("data-key") == "two")
        assert page.locator('th[data-sort="age"]').get_attribute("aria-sort") == "ascending", "the youngest is first"
        kill = page.locator("#kill-chosen")
        assert kill.is_disabled(), "nothing says which calls are meant"
        page.get_by_label("Tenant").fill("nobody")  # what is typed takes effect at once
        page.locator('#calls-body [data-key="two"]').wait_for(state="detached")
        assert kill.is_disabled()
        page.get_by_label("Tenant").fill("")
        page.get_by_label("Older than").fill("abc")
        page.locator("#filter-error", has_text="expected a number").wait_for()
        assert page.locator("#calls-body tr").count() == 0, "no rows of another filter"
        assert sorted(live(gateway)) == ["one", "two"]


def test_all_that_is_listed_is_killed_and_the_question_names_the_filter(browser: Any) -> None:
    with gateway_and_engine({}, slots=8, token_s=0.01) as (gateway, engine), opened(browser, gateway) as page:
        asked: list[str] = []

        def answer(dialog: Any) -> None:
            asked.append(dialog.message)
            stack.enter_context(streaming(gateway, "later"))  # it was not listed when the question was asked
            dialog.accept()

        with contextlib.ExitStack() as stack:
            for name in ("first", "second"):
                stack.enter_context(streaming(gateway, name))
            page.on("dialog", answer)
            page.get_by_label("Tenant").fill("default")
            page.get_by_role("button", name="Kill all 2 of these").click()
            page.locator("#done", has_text="Killed 2 calls; the engines confirmed 2 of them stopped.").wait_for()
            assert asked == ["Kill 2 calls (tenant default) and stop their work in the engines?"]
            assert live(gateway) == ["later"]
        engine.wait_idle()


def test_a_call_opens_on_a_click_and_is_found_by_its_id(browser: Any, pair: tuple[Gateway, StandIn]) -> None:
    gateway, _ = pair
    with opened(browser, gateway) as page:
        with streaming(gateway, "clicked"):
            page.locator("#calls-body").get_by_role("button", name="clicked", exact=True).click()
            page.locator("#call-steps li", has_text="first token").wait_for()
            assert page.get_by_role("heading", name="Call clicked").is_visible() and page.locator("#call-kill").is_visible()
            page.get_by_role("button", name="Close").click()
        gateway.call_log("clicked")
        page.get_by_label("Find a call by its id").fill("clicked")
        page.get_by_role("button", name="Show", exact=True).click()
        page.locator("#call-facts dd", has_text="the client hung up").wait_for()
        page.locator("#call-steps li", has_text="ended: client_gone").wait_for()
        assert not page.locator("#call-kill").is_visible()
        page.keyboard.press("Escape")
        page.get_by_label("Find a call by its id").fill("never-was")
        page.get_by_role("button", name="Show", exact=True).click()
        page.locator("#done", has_text="There is no call never-was").wait_for()


@pytest.mark.parametrize("what", ["first", "queue", "calls", "live"])
def test_times_and_calls_by_model_tenant_and_backend(browser: Any, pair: tuple[Gateway, StandIn], what: str) -> None:
    from support.raw import ask

    gateway, _ = pair
    with opened(browser, gateway) as page:
        page.locator("#chart canvas").wait_for()
        page.locator('[name="what"]').select_option(what)
        for by, name in (("model", "graphed"), ("tenant", "default"), ("backend", "127.0.0.1")):
            ask(gateway.address, "/v1/chat/completions", {"model": "graphed", "messages": [], "max_tokens": 3})
            page.locator('#graph-form [name="by"]').select_option(by)
            row = page.locator("#groups tr", has_text=name).first
            row.wait_for()
            assert int(row.locator('[data-label="Calls ended"]').inner_text().replace(",", "")) > 0
            row.locator('[data-label="First token, p95"]', has_text="s").wait_for()
        page.locator('[name="seconds"]').select_option("604800")
        page.get_by_text("known since").wait_for()
        page.locator('#groups [data-key="all calls"]').wait_for()


def test_what_stands_in_two_places_is_equal(browser: Any, pair: tuple[Gateway, StandIn]) -> None:
    from support.raw import ask

    gateway, _ = pair
    ask(gateway.address, "/v1/chat/completions", {"model": "counted", "messages": [], "max_tokens": 7})
    with opened(browser, gateway) as page:
        total = page.locator('#money [data-key="total"]')
        total.wait_for()
        for tile, column in (("Tokens delivered, 24 h", "Delivered"), ("Tokens wasted, 24 h", "Wasted")):
            # Both come from one answer; the tile follows with the next snapshot.
            places = page.locator(f'#tiles [data-name="{tile}"] dd'), total.locator(f'[data-label="{column}"]')
            wait_until(partial(_same, page, *places), what="equal figures")


def _same(page: Page, one: Any, other: Any) -> bool:
    page.wait_for_timeout(50)
    return bool(one.inner_text() == other.inner_text())


def test_it_goes_on_after_a_restart_of_the_gateway(browser: Any) -> None:
    with StandIn() as engine:
        with Gateway(engine.url) as gateway:
            port = gateway.admin_url.rpartition(":")[2]
            page = browser.new_page()
            page.goto(gateway.admin_url)
            page.get_by_text("ready").first.wait_for()
        page.get_by_text("No connection to the gateway since").wait_for()
        assert page.locator("body.stale").count() == 1 and "no connection" in page.title()
        from support.processes import Process

        with Process("serve", "--port", "0", "--admin-port", port, "--upstream", engine.url) as again:
            again.find_line("serving")
            page.locator("#state:not(.lost)").wait_for()
            assert page.locator("body.stale").count() == 0 and page.title() == "hangup"
        page.close()


def test_the_token_is_asked_for(browser: Any, pair: tuple[Gateway, StandIn]) -> None:
    with Gateway(pair[1].url, admin_token_env="T", env={"T": "s3cret"}) as gateway, opened(browser, gateway) as page:
        page.get_by_text("This gateway requires its admin token").wait_for()
        assert not page.locator("#backends").is_visible(), "there is nothing to see yet"
        page.get_by_label("Admin token").fill("guessed")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text("The gateway refused this admin token.").wait_for()
        page.get_by_label("Admin token").fill("s3cret")
        page.get_by_role("button", name="Sign in").click()
        page.locator("#state:not(.lost)", has_text="ready").wait_for()
        assert "s3cret" not in page.content()


def test_names_from_clients_are_text(browser: Any, pair: tuple[Gateway, StandIn]) -> None:
    gateway, _ = pair
    with streaming(gateway, "evil") as client, opened(browser, gateway) as page:
        client.fin()
        from support.raw import Client

        with Client(gateway.address) as other:
            other.chat(
                {"X-Request-Id": "markup"}, stream=True, ignore_eos=True, max_tokens=9000, model="<img src=x onerror=alert(1)>"
            )
            other.read_until(b'"content":" ')
            page.locator('#calls-body [data-key="markup"]').wait_for()
            assert page.locator("#calls-body img").count() == 0
            assert "<img" in words(page, '#calls-body [data-key="markup"]')


_WATCH_TASKS = """() => {
  window.tasks = [];
  const keep = (list) => window.tasks.push(...list.getEntries().map((entry) => entry.duration));
  new PerformanceObserver(keep).observe({ type: "longtask" });
}"""


@pytest.mark.alone
def test_thousands_of_calls_do_not_freeze_it(browser: Any) -> None:
    """There are 2,000 calls over sockets here (the benchmark has 10,000): one page of rows is drawn, and the page reacts at
    once."""
    with gateway_and_engine({"slots": 10, "queue_depth_max": 5000, "queue_s": 600}, slots=10, token_s=1.0) as (gateway, _):
        from support.raw import Client

        clients = [Client(gateway.address) for _ in range(2000)]
        for at, client in enumerate(clients):
            client.chat({"X-Request-Id": f"c{at:04d}"}, stream=True)
        wait_until(lambda: admin(gateway, "GET", "/api/calls?limit=1")[1]["total"] == 2000)
        with opened(browser, gateway) as page:
            page.evaluate(_WATCH_TASKS)
            page.get_by_text("(2,000)").wait_for()
            assert page.locator("#calls-body tr").count() == 50
            start = time.monotonic()
            page.get_by_role("button", name="Next").click()
            page.get_by_text("51–100 of 2,000").wait_for()
            assert time.monotonic() - start < 20
            page.wait_for_timeout(3000)
            assert max(page.evaluate("window.tasks"), default=0) < 500, "a task of the page's main thread, in ms"
        for client in clients:
            client.fin()


def _for_the_picture(first: StandIn, second: StandIn) -> str:
    """Start two engines, of which one will turn deaf, and three tenants."""
    tenants = [
        f'[[tenant]]\nname = "{name}"\nkey_sha256 = ["{hashlib.sha256(name.encode()).hexdigest()}"]'
        for name in ("chat", "search", "batch")
    ]
    backends = [
        f'[[backend]]\nname = "{name}"\nurl = "{engine.url}"\nprice_per_hour = 2.5'
        for name, engine in (("gpu-1", first), ("gpu-2", second))
    ]
    limits = """[limits]
    counters_interval_s = 0.5
    divergence_window_s = 2
    divergence_hold_s = 1
    release_grace_s = 1
    abort_backoff_s = 0.2
    """
    return "\n".join([limits, *backends, *tenants])


def test_a_picture_for_the_readme(browser: Any, tmp_path: Path) -> None:
    """`make dashboard-picture` updates the screenshot; this test only checks that it can be taken."""
    target = Path(os.environ.get("DASHBOARD_PICTURE") or tmp_path / "dashboard.png")
    scheme = os.environ.get("DASHBOARD_SCHEME", "light")
    look = {"viewport": {"width": 1440, "height": 1400}, "color_scheme": scheme}
    with (
        StandIn(slots=8, token_s=0.02, like="llamacpp") as first,
        StandIn(slots=8, token_s=0.02, like="llamacpp") as second,
        Gateway(config=_for_the_picture(first, second)) as gateway,
        contextlib.ExitStack() as stack,
        opened(browser, gateway, **look) as page,
    ):
        wait_until(lambda: {row["limit"] for row in admin(gateway, "GET", "/api/backends")[1]["backends"]} == {8})
        for at in range(4):
            stack.enter_context(streaming(gateway, f"hu-{at}f3a9c07be1d24c55", "search" if at % 2 else "chat"))
        page.wait_for_timeout(4000)
        second.behave(deaf=True)
        for at in range(4):
            with streaming(gateway, f"hu-{at}e1c55a0b9d42f08a", "batch"):
                pass
        page.locator("#alarms p").wait_for(timeout=20_000)
        page.locator("#backends td.state.quarantined").wait_for()
        page.wait_for_timeout(8000)
        jobs.start_batch(jobs.client(gateway.url, "batch"), [jobs.line(f"r{n}", max_tokens=12) for n in range(40)])
        page.locator("#jobs td.share:not(.p0)").wait_for(timeout=20_000)
        page.screenshot(path=target)
    assert target.stat().st_size > 20_000
