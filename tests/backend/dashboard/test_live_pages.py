"""Pages that are open while their job goes on, fails, or loses its gateway."""

import time

import pytest

from tests.backend.dashboard.test_browser import Seen, episode, hostile_job, step
from tests.relay import Relay
from tinkergym.schema.events import ErrorView, EvaluationEvent, JobState

pytestmark = [pytest.mark.service, pytest.mark.full("pages in a browser that change")]

CURVE = ".chart:has(h3:text-is('{}')) .legend"


@pytest.fixture
def relay(gateway):
    relay = Relay(gateway.url)
    yield relay
    relay.close()


def begun(gateway, job_id):
    service = gateway.store.service()
    lease = service.acquire(job_id, "worker", 600, now=time.time())
    service.set_state(lease, JobState.RUNNING)
    return service, lease


def test_draws_metrics_that_come_after_the_page(chromium, gateway, client, spec):
    job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
    seen = Seen(chromium, gateway, gateway.keys["ada"])
    seen.open(f"/jobs/{job_id}", "text=● live")
    assert seen.page.locator("canvas:visible").count() == 0
    service, lease = begun(gateway, job_id)
    service.append_event(lease, step(1))
    seen.page.wait_for_selector(f"{CURVE.format('Loss')} >> text=loss 0.100")
    seen.page.wait_for_selector("text=engine busy 500 ms")
    service.append_event(lease, step(2, "solved"))
    seen.page.wait_for_selector(f"{CURVE.format('Environment')} >> text=solved 1")
    seen.page.wait_for_selector(f"{CURVE.format('Why episodes ended')} >> text=solved 3")
    service.append_event(lease, step(3, "solved"))
    seen.page.wait_for_selector(f"{CURVE.format('Environment')} >> text=step 3")
    assert "engine busy 1.5 s" in seen.page.inner_text(".facts")
    seen.page.click("summary:has-text('All other metrics')")
    seen.page.wait_for_selector(f"{CURVE.format('solved')} >> text=solved 2")
    assert seen.wrong == []


def test_raises_alarms_while_the_page_is_open(chromium, gateway, client, spec):
    job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
    seen = Seen(chromium, gateway, gateway.keys["ada"])
    seen.open(f"/jobs/{job_id}", "text=● live")
    assert "No alarms" in seen.page.inner_text("#alarms")
    service, lease = begun(gateway, job_id)
    service.append_event(lease, step(1, failed_episodes=2))
    seen.page.wait_for_selector("#alarms >> text=failed episodes")
    seen.page.wait_for_selector(".gantt:has-text('The newest 1 steps')")
    overlaps = EvaluationEvent(
        name="held", step=1, policy_version=1, episodes=4, failed_episodes=0, mean=0.5, overlap=0.5
    )
    service.append_event(lease, overlaps)
    seen.page.wait_for_selector("#alarms >> text=evaluation overlap")
    error = ErrorView(type="PolicyCollapseError", message="it collapsed", hint="")
    service.set_state(lease, JobState.FAILED, error=error)
    seen.page.wait_for_selector("#alarms >> text=it collapsed")
    assert seen.wrong == []


def test_resumes_without_gap_or_double_after_the_gateway_is_back(chromium, gateway, client, spec, relay):
    job_id, lease = hostile_job(gateway, client, spec, "plain")
    service = gateway.store.service()
    run, overview, texts = (Seen(chromium, gateway, gateway.keys["ada"], url=relay.url) for _ in range(3))
    run.open(f"/jobs/{job_id}", "text=● live")
    overview.open("", f"#open-{job_id}")
    asked = []

    def first_of_two(route):
        if "before=" in route.request.url:
            if not asked:
                relay.unplug()
            asked.append(route.request.url)
            return route.continue_()
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "steps": 2, "next_before": 2})

    texts.page.route("**/episodes/rows?*", first_of_two)
    texts.open(f"/jobs/{job_id}/episodes", "#away:visible")
    for each in (run, overview):
        each.page.wait_for_selector("#away:visible")
    run.page.wait_for_selector("text=connection lost, trying again")
    for number in (2, 3):
        service.append_event(lease, step(number))
    relay.plug()
    run.page.wait_for_selector("text=● live")
    run.page.wait_for_selector("text=engine busy 1.5 s")
    texts.page.wait_for_selector("text=2 read")
    assert len(set(asked)) < len(asked)
    for each in (run, overview, texts):
        each.page.wait_for_selector("#away", state="hidden")
    assert "3 / 50" in run.page.inner_text(".facts")
    assert (run.wrong, overview.wrong, texts.wrong) == ([], [], [])


def test_exports_an_episode_with_its_folded_texts(chromium, gateway, client, spec, tmp_path):
    job_id, lease = hostile_job(gateway, client, spec, "plain")
    long = f"begins{'-' * 9000}<b>ends</b>"
    gateway.store.service().save_episodes(lease, 1, [episode(job_id, 4, long)])
    seen = Seen(chromium, gateway, gateway.keys["ada"])
    seen.open(f"/jobs/{job_id}/episodes/{job_id}:1:4", ".show-all")
    with seen.page.expect_download() as download:
        seen.page.click("text=Export as one file")
    download.value.save_as(tmp_path / "episode.html")
    assert seen.page.locator(".show-all").count() > 0
    alone = chromium.new_page(java_script_enabled=False)
    alone.goto((tmp_path / "episode.html").as_uri())
    shown = [one for one in alone.locator(".said").all_text_contents() if "begins" in one]
    assert (len(shown) >= 10, all("ends" in one for one in shown)) == (True, True)
    assert "folded" not in alone.content()
    alone.close()
    assert seen.wrong == []


def test_lets_the_service_search_and_sort_jobs(chromium, gateway, client, spec):
    jobs = [client.post("/v1/jobs", json={**spec, "name": name}).json()["job_id"] for name in ("b", "a")]
    seen = Seen(chromium, gateway, gateway.keys["ada"])
    seen.open("", f"#open-{jobs[0]}")
    with seen.page.expect_request("**/v1/jobs?*sort=name*state=queued*"):
        seen.page.select_option("select", "name")
        seen.page.click("button:text-is('Waiting')")
    seen.page.wait_for_selector(f"tr:has(#open-{jobs[1]}) + tr:has(#open-{jobs[0]})")
    seen.page.fill("#search", jobs[0])
    seen.page.wait_for_selector(f"#open-{jobs[1]}", state="detached")
    seen.open(f"/compare/{jobs[0]}", "h1")
    seen.page.wait_for_selector(f"option[value={jobs[1]}]", state="attached")
    assert seen.page.locator(f"option[value={jobs[0]}]").count() == 0
    assert seen.wrong == []
