"""The dashboard with ten thousand live calls, in Chromium: long tasks, frames, and the time to answer a click.

Needs what `make test-dashboard` installs. Each live call takes two file descriptors in the gateway and one here.
"""

from __future__ import annotations

import asyncio
import resource
import shutil
from typing import Any

from bench import load, targets
from bench.load import percentile

_WATCH_S = 20
_CLICKS = ["Next", "Next", "Previous", "Out", "Tok/s", "Age", "Idle", "Next"]
# A long task takes over 50 ms; a frame is late when the main thread was busy.
_OBSERVE = """() => {
  window.tasks = []; window.frames = [];
  const keep = (list) => window.tasks.push(...list.getEntries().map((entry) => entry.duration));
  new PerformanceObserver(keep).observe({ type: "longtask" });
  let before = performance.now();
  const frame = (now) => { window.frames.push(now - before); before = now; requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
}"""
# From a click to the rows that answer it.
_CLICK = """(name) => new Promise((resolve) => {
  const button = [...document.querySelectorAll("#calls button")].find((each) => each.textContent === name);
  const start = performance.now();
  const seen = new MutationObserver(() => { seen.disconnect(); resolve(performance.now() - start); });
  seen.observe(document.getElementById("calls-body"), { childList: true, subtree: true, characterData: true });
  button.click();
})"""


async def run(count: int = 10_000) -> dict[str, Any]:
    """Open streams that get a token every ten seconds, so that a thousand tokens arrive per second, and watch the page;
    meanwhile a tenth of the clients disconnects and is replaced.
    """
    count = min(count, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100) // 2)
    flags = ["--gap-s", "600", "--slots", "20000", "--counters-interval-s", "1"]
    with targets.engine(rate=0.1) as engine, targets.hangup(engine.port, *flags) as target:
        counter = [0]
        opened = await load.open_streams(target.port, count, counter, load.STREAM)
        watching = asyncio.create_task(asyncio.to_thread(_watch, f"http://127.0.0.1:{target.admin_port}/", count))
        while not watching.done():
            leaving, opened = opened[: count // 200], opened[count // 200 :]
            for stream in leaving:
                stream.transport.abort()
            opened += await load.open_streams(target.port, len(leaving), counter, load.STREAM)
            await asyncio.sleep(1)
        for stream in opened:
            stream.transport.abort()
    found = watching.result()
    print(
        f"  {count} live calls, {_WATCH_S} s: {found['long_tasks']} tasks over 50 ms, the longest {found['longest_ms']:.0f} ms"
    )
    spread = ", ".join(f"{name} {found[f'frame_{name}_ms']:.0f} ms" for name in ("p50", "p99", "worst"))
    print(f"  frames {spread}")
    print(f"  from a click to its rows p50 {found['click_p50_ms']:.0f} ms, worst {found['click_worst_ms']:.0f} ms")
    return {"calls": count, **found}


def _watch(url: str, count: int) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(url)
        page.get_by_text(f"of {count:,}").wait_for()
        page.evaluate(_OBSERVE)
        clicks = []
        for name in _CLICKS:
            page.wait_for_timeout(_WATCH_S * 1000 / len(_CLICKS))
            clicks.append(float(page.evaluate(_CLICK, name)))
        tasks, frames = page.evaluate("[window.tasks, window.frames]")
        browser.close()
    return {
        "long_tasks": len(tasks),
        "longest_ms": max(tasks, default=0.0),
        "frame_p50_ms": percentile(frames, 0.5),
        "frame_p99_ms": percentile(frames, 0.99),
        "frame_worst_ms": max(frames),
        "click_p50_ms": percentile(clicks, 0.5),
        "click_worst_ms": max(clicks),
    }
