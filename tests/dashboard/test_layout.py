"""How the dashboard looks at four widths, light and dark: nothing is clipped, axe finds no fault, rows are as short as may be,
and what is told is in words."""

from __future__ import annotations

import time
from typing import Any

import pytest

from admin.test_api import streaming
from dashboard.browsing import opened
from support.processes import Gateway, StandIn
from support.raw import Client, ask

WIDTHS = [360, 768, 1280, 1920]


@pytest.mark.parametrize("width", WIDTHS)
def test_no_button_is_clipped_at_any_width(browser: Any, pair: tuple[Gateway, StandIn], width: int) -> None:
    gateway, _ = pair
    id = "a-call-of-a-batch-with-a-long-id-" + "x" * 60
    look = {"viewport": {"width": width, "height": 900}}
    with opened(browser, gateway, **look) as page, streaming(gateway, id):
        for name in (f"Kill {id}", "Drain "):
            button = page.get_by_role("button", name=name).first
            button.wait_for()
            button.scroll_into_view_if_needed()
            box = button.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width, box
            at = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
            hit = page.evaluate("([x, y]) => document.elementFromPoint(x, y).getAttribute('aria-label')", at)
            assert hit is not None and hit.startswith(name.strip()), "something covers it"
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page itself does not scroll sideways"
        cut = "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText)"
        assert page.evaluate(cut) == [], "nor does a table"
        shown = page.locator(f'#calls-body [data-key="{id}"] td').first
        assert shown.get_attribute("title") == id and len(shown.inner_text()) < 20, "the whole id is one hover away"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_fault_for_people_with_disabilities(
    browser: Any, pair: tuple[Gateway, StandIn], scheme: str, width: int
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    gateway, _ = pair
    look = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with opened(browser, gateway, **look) as page, streaming(gateway, f"seen-{scheme}-{width}"):
        page.locator(f'#calls-body [data-key="seen-{scheme}-{width}"]').wait_for()
        page.locator("#groups tr").first.wait_for()
        # axe is put into the page by the test, which the page's own policy would not allow it to load.
        found = Axe().run(page).response["violations"]
        page.locator("#calls-body button.link").first.click()
        page.locator("#call-steps li").first.wait_for()
        found += Axe().run(page).response["violations"]
    serious = [(fault["id"], fault["nodes"][0]["html"]) for fault in found if fault["impact"] in ("serious", "critical")]
    assert serious == []


def test_a_phone_shows_a_call_in_a_few_lines_and_folds_the_fields(browser: Any, pair: tuple[Gateway, StandIn]) -> None:
    gateway, _ = pair
    with opened(browser, gateway, viewport={"width": 360, "height": 800}) as page, streaming(gateway, "carried"):
        card = page.locator('#calls-body [data-key="carried"]')
        card.filter(has_text="answering").wait_for()
        top, kill, tenant, phase = (
            part.bounding_box()["y"]
            for part in (
                card,
                card.get_by_role("button", name="Kill"),
                *(card.locator(f'[data-label="{n}"]') for n in ("Tenant", "Phase")),
            )
        )
        assert kill - top < 20, "its button stands beside its name"
        assert abs(tenant - phase) < 60 and card.bounding_box()["height"] < 230, "two facts in a line"
        assert not page.get_by_label("Tenant").is_visible()
        page.get_by_text("Filter and find").click()
        page.get_by_label("Tenant").fill("nobody")
        card.wait_for(state="detached")


def test_what_a_call_waits_for_stays_in_one_line_on_a_laptop(browser: Any, pair: tuple[Gateway, StandIn]) -> None:
    gateway, _ = pair
    with opened(browser, gateway, viewport={"width": 1280, "height": 800}) as page, Client(gateway.address) as client:
        client.chat(stream=True, ignore_eos=True, max_tokens=20000, model="meta-llama/Llama-3.1-70B-Instruct-and-more")
        cell = page.locator('#calls-body [data-label="Waiting for"]', has_text="the next token")
        cell.wait_for()
        lines = "cell => { const r = document.createRange(); r.selectNodeContents(cell); return r.getClientRects().length; }"
        assert cell.evaluate(lines) == 1


def test_what_happened_is_told_in_words_and_many_zombies_in_one_line(browser: Any, pair: tuple[Gateway, StandIn]) -> None:
    gateway, _ = pair
    at = time.time()
    noon = at - at % 86400 - 3 * 86400 + 43200
    found = [{"event": "zombie_found", "at": noon + n, "backend": "b", "id": f"hu-{n:024}"} for n in range(5)]
    told = [
        *found,
        {"event": "orphans_found", "at": at, "backend": "b", "count": 1},
        {"event": "divergence_alarm_changed", "at": at, "backend": "b", "state": "raised", "signal": "exact"},
    ]

    def with_events(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "events": told})

    with opened(browser, gateway, timezone_id="UTC") as page:
        page.route("**/api/history*", with_events)
        page.select_option("#graph-what", "calls")
        page.locator(
            "#events td.bad", has_text="alarm raised: it computes tokens that nobody receives (by its own count"
        ).wait_for()
        page.locator("#events td", has_text="runs 1 call that").wait_for()
        rows = page.locator("#events tr").all_inner_texts()
        assert len(rows) == 3 and "still computes 5 calls (hu-00000000…00000, " in rows[-1]
        assert ", 12:00:00" in rows[-1], "the date, and 24 hours as in the log"


def test_a_refusal_is_named_in_words(browser: Any, pair: tuple[Gateway, StandIn]) -> None:
    gateway, _ = pair
    with opened(browser, gateway) as page:
        assert ask(gateway.address, "/v1/chat/completions", {"model": 3}).status == 400
        page.locator("#refusals td", has_text="refused: a field of the request has an invalid value (bad_field)").wait_for()


@pytest.mark.parametrize("width", [360, 1280])
def test_a_gateway_that_is_gone_is_noticed_wherever_the_page_is(browser: Any, engine: StandIn, width: int) -> None:
    with Gateway(engine.url) as gateway, opened(browser, gateway, viewport={"width": width, "height": 600}) as page:
        page.locator("#groups tr").first.wait_for()
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        assert page.evaluate("scrollY") > 300
        gateway.close()
        said = page.get_by_text("No connection to the gateway since")
        said.wait_for()
        assert 0 <= said.bounding_box()["y"] < 300
