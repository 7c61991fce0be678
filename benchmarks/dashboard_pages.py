"""What a browser sees of the dashboard's pages, and when, as the pages themselves say.

An observer sees the first curve, token or row enter the document; two frames later it is painted. Times are
from the start of the navigation. Playwright's own waiting would add up to half a second, as it looks again at
ever longer intervals.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.dashboard_data import IMAGES, MANY_EPISODES, DashboardData, GatewayProcess
from benchmarks.dashboard_streams import event_streams

LIVE_STEPS = 100
_LIVE_PAUSE_SECONDS = 0.2

_MARKS = """window.tasks = [];
window.painted = {};
const seen = new Map();
for (const [name, selector] of Object.entries(
  { job: "tbody tr", curve: ".chart canvas", token: ".token", episode: ".virtual-row" }
)) window.painted[name] = new Promise((resolve, reject) => {
  seen.set(name, [selector, resolve]);
  setTimeout(() => reject(new Error(`no ${name} within a minute`)), 60000);
});
for (const one of Object.values(window.painted)) one.catch(() => {});
new MutationObserver(() => {
  for (const [name, [selector, resolve]] of seen) if (document.querySelector(selector)) {
    seen.delete(name);
    requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now())));
  }
}).observe(document, { childList: true, subtree: true });
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) window.tasks.push([one.startTime, one.duration]);
}).observe({ type: "longtask", buffered: true });"""
"""When the first of each is painted, and the tasks of 50 ms or more with their begin."""

_FOLLOW = """() => {
  window.arrived = {};
  const look = () => {
    const text = document.querySelector(".progress .small")?.textContent ?? "";
    window.arrived[text.split(" / ")[0].replaceAll(",", "")] ??= Date.now() / 1000;
  };
  new MutationObserver(look).observe(document.body, { childList: true, subtree: true, characterData: true });
}"""
"""When the page shows each step."""

_ARRIVED = """(last) => new Promise((resolve) => {
  const until = performance.now() + 30000;
  const look = () => {
    if (last in window.arrived || performance.now() > until) resolve(window.arrived);
    else setTimeout(look, 50);
  };
  look();
})"""
"""Waits until the page has shown the last step, but not for ever, and says when it showed each."""

_LIVE = """() => new Promise((resolve, reject) => {
  setTimeout(() => reject(new Error("the page is not live within a minute")), 60000);
  const live = () => document.querySelector(".live")?.textContent.includes("live");
  const look = () => (live() ? resolve() : setTimeout(look, 20));
  look();
})"""

_SCROLL = """async () => {
  const box = document.querySelector(".virtual"), status = document.querySelector("form [role=status]");
  const began = performance.now(), frames = [];
  let rows = 0, place = 0, read = null, last = began;
  for (let more = 400; more > 0; ) { // twice from the first row to the last when all are read
    if (read === null && status.textContent.endsWith(" read")) { read = performance.now(); place = 0; }
    if (read !== null) more -= 1;
    place = place >= 1 ? 0 : place + 1 / 200;
    box.scrollTop = (box.scrollHeight - box.clientHeight) * place;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    frames.push(now - last);
    last = now;
    rows = Math.max(rows, document.querySelectorAll(".virtual-row").length);
  }
  const all = Number(document.querySelector(".virtual-row").getAttribute("aria-setsize"));
  await new Promise((resolve) => setTimeout(resolve, 500)); // tasks are reported late
  return { rows, all, frames, read_ms: read, tasks: window.tasks.filter(([start]) => start >= began) };
}"""
"""Scrolls while the episodes are being read, and then through all of them."""


def look_at_everything(browser: Any, data: DashboardData) -> dict[str, Any]:
    """Open each page with a new gateway and a new profile, which have read nothing before."""
    with data.gateway() as gateway, _logged_in(browser, gateway.url, data.key) as (page, elsewhere):
        found: dict[str, Any] = {"overview": _opened(page, gateway.url, "", "job")}
        before = gateway.memory_mb()
        run = f"/jobs/{data.long_run}"
        found["run, first view"] = _opened(page, gateway.url, run, "curve")
        found["run, later view"] = _opened(page, gateway.url, run, "curve")
        found["live"] = _live(page, gateway, data) | {"memory_before_mb": before}
        found["episode"] = _opened(page, gateway.url, f"/jobs/{data.long_episode}", "token")
        pictures = page.locator("main img").count()
        if pictures < IMAGES:
            raise RuntimeError(f"the page of the episode shows {pictures} of {IMAGES} images")
        found["episodes"] = _opened(page, gateway.url, f"/jobs/{data.many_episodes}/episodes", "episode")
        found["scrolling"] = _scrolled(page)
        found["elsewhere"] = elsewhere
    return found


@contextmanager
def _logged_in(browser: Any, url: str, key: str) -> Iterator[tuple[Any, list[str]]]:
    """Yield a page of a new profile that has opened nothing yet, and the requests to other hosts."""
    context = browser.new_context()
    # The session's cookie alone: a form that is filled in would open two pages.
    context.request.post(
        f"{url}/dashboard/login", form={"key": key}, headers={"Origin": url}, max_redirects=0
    )
    elsewhere: list[str] = []

    def look(request: Any) -> None:
        if not request.url.startswith((f"{url}/", "data:", "blob:")):
            elsewhere.append(request.url)

    context.on("request", look)
    context.add_init_script(_MARKS)
    try:
        yield context.new_page(), elsewhere
    finally:
        context.close()


def _opened(page: Any, url: str, path: str, awaited: str) -> dict[str, Any]:
    page.goto(f"{url}/dashboard{path}", wait_until="commit")
    return {
        "painted_ms": page.evaluate(f"window.painted.{awaited}"),
        "first_paint_ms": page.evaluate(
            "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
        ),
        "tasks": page.evaluate("window.tasks"),
    }


def _live(page: Any, gateway: GatewayProcess, data: DashboardData) -> dict[str, Any]:
    """Commit steps while the page of their run is open and others read the same events."""
    page.evaluate(_LIVE)
    with event_streams(gateway.url, data.key) as streams:
        alone = peak = gateway.memory_mb()
        streams.open(data.long_run, after=data.last_event, events=LIVE_STEPS)
        page.evaluate(_FOLLOW)
        committed = {}
        for _ in range(LIVE_STEPS):
            step, at = data.append_step()
            committed[str(step)] = at
            peak = max(peak, gateway.memory_mb())
            time.sleep(_LIVE_PAUSE_SECONDS)
        arrived = page.evaluate(_ARRIVED, str(data.last_step))
        in_streams = streams.read()
        peak = max(peak, gateway.memory_mb())
    return {
        "late_ms": sorted(1000 * (arrived[step] - at) for step, at in committed.items() if step in arrived),
        "events_in_streams": in_streams,
        "memory_without_streams_mb": alone,
        "memory_with_streams_mb": peak,
    }


def _scrolled(page: Any) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(_SCROLL)
    if found["all"] != MANY_EPISODES:
        raise RuntimeError(f"the page lists {found['all']} of {MANY_EPISODES} episodes")
    tasks = sorted(took for _, took in found.pop("tasks"))
    found |= {"tasks": len(tasks), "longest_tasks_ms": tasks[-10:]}
    frames = found.pop("frames")
    return found | {"frames": len(frames), "median_frame_ms": statistics.median(frames)}
