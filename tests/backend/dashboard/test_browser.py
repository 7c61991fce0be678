"""The pages in a real browser, over a real gateway: Debian's Chromium, driven by Playwright."""

import shutil
import time

import pytest

from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.events import EvaluationEvent, JobState, StepEvent, WarningEvent

pytestmark = [pytest.mark.service, pytest.mark.full("starts a browser")]

HIT = "window.hit=1"
HOSTILE = [
    f"<script>{HIT}</script>",
    f'<img src=x onerror="{HIT}">',
    f'"><svg onload={HIT}>',
    f"'-{HIT}-'",
    f"</textarea><script>{HIT}</script>",
    f"</script><script>{HIT}</script>",
    f"javascript:{HIT}",
    "{{constructor.constructor('window.hit=1')()}}",
    f'<a href="javascript:{HIT}" autofocus onfocus={HIT}>x</a>',
    f"<iframe srcdoc='<script>parent.{HIT}</script>'>",
    "<link rel=stylesheet href=http://evil.example/x.css><img src=http://evil.example/x.png>",
    "\u202e\u2066right to left\x00\x1b[31m %s %n ${7*7} `id`",
]


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


class Seen:
    """A page that is logged in, and what went wrong in it."""

    def __init__(self, chromium, gateway, key, **context):
        self.url, self.wrong = gateway.url, []
        self.page = chromium.new_context(**context).new_page()
        self.page.on("dialog", lambda dialog: (self.wrong.append("dialog"), dialog.dismiss()))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", self._request)
        self.page.on("console", self._said)
        self.page.goto(f"{self.url}/dashboard")
        self.page.fill("#key", key)
        self.page.click("form.login button")
        self.page.wait_for_selector("h1:has-text('Jobs')")

    def _request(self, request):
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.wrong.append(f"request to {request.url}")

    def _said(self, message):
        if "Content Security Policy" in message.text or "Refused to" in message.text:
            self.wrong.append(message.text)

    def open(self, path, until):
        self.page.goto(f"{self.url}/dashboard{path}")
        self.page.wait_for_selector(until)
        if self.page.evaluate("window.hit"):
            self.wrong.append(f"a script ran at {path}")


def step(number, text="", **more):
    return StepEvent(
        step=number,
        steps=50,
        policy_version=number,
        reward_mean=number / 100,
        loss=0.1,
        tokens_per_second=1.0,
        step_seconds=1.0,
        sampling_seconds=0.5,
        learning_seconds=0.5,
        seconds_left=7.0,
        metrics={f"env/{text}": 1.0, f"{text}": 2.0} if text else {},
        stop_reasons={text: 3} if text else {},
        **more,
    )


def episode(job_id, index, text):
    parts = [
        {"type": "text", "text": text},
        {"type": "tool_call", "id": "1", "name": text[:200], "arguments": text},
        {"type": "tool_result", "id": "1", "text": text},
        {"type": "image", "sha256": "0" * 64},
    ]
    turn = {
        "segment": 0,
        "start": 1,
        "end": 2,
        "policy_version": 1,
        "finish_reason": "stop",
        "observation": parts,
        "action": f"<think>{text}</think><tool_call>{text}</tool_call>{text}",
        "reward": 1.0,
        "metrics": {text[:90]: 1.0},
    }
    segment = {"token_ids": [1, 2], "loss_mask": [False, True], "sampling_logprobs": [None, -1.0]}
    seat = {
        "agent": text[:90],
        "segments": [segment],
        "turns": [turn],
        "terminated": True,
        "truncated": False,
        "stop_reason": "environment_error",
        "error": text,
        "seed": 1,
        "final_observation": text,
    }
    return EpisodeResult.model_validate(
        {"episode_id": f"{job_id}:1:{index}", "lease_id": "l", "trajectories": [seat]}
    )


def hostile_job(gateway, client, spec, text):
    job_id = client.post("/v1/jobs", json={**spec, "name": text[:200], "system_prompt": text}).json()[
        "job_id"
    ]
    labels = {"name": text[:200], "tags": [text[:60]], "note": text}
    assert client.post(f"/v1/jobs/{job_id}/labels", json=labels).status_code == 200
    service = gateway.store.service()
    lease = service.acquire(job_id, "worker", 600, now=time.time())
    service.set_state(lease, JobState.RUNNING, reason=text)
    evaluated = {"policy_version": 1, "episodes": 4, "failed_episodes": 0, "mean": 0.5, "overlap": 0.5}
    service.append_events(
        lease,
        [
            WarningEvent(name=text[:90], message=text, step=1),
            step(1, text),
            EvaluationEvent(name=text, step=1, **evaluated),
        ],
    )
    service.save_episodes(lease, 1, [episode(job_id, 0, text)])
    return job_id, lease


def test_runs_nothing_of_what_hostile_texts_say(chromium, gateway, client, spec):
    seen = Seen(chromium, gateway, gateway.keys["ada"])
    jobs = [hostile_job(gateway, client, spec, text)[0] for text in HOSTILE]
    seen.open("", f"text={jobs[0]}")
    seen.open(f"/compare/{'/'.join(jobs[:6])}", "text=Settings that differ")
    for job_id in jobs:
        seen.open(f"/jobs/{job_id}", "text=Settings as they took effect")
        seen.open(f"/jobs/{job_id}/episodes", ".virtual-row")
        seen.open(f"/jobs/{job_id}/episodes/{job_id}:1:0", ".turn")
        seen.open(f"/jobs/{job_id}/group/1/0", ".turn")
    assert seen.wrong == []


def test_grows_with_the_event_log_without_gap_or_double(chromium, gateway, client, spec):
    job_id, lease = hostile_job(gateway, client, spec, "plain")
    service = gateway.store.service()
    seen = Seen(chromium, gateway, gateway.keys["ada"])
    seen.open(f"/jobs/{job_id}", "text=● live")
    service.append_event(lease, step(2))
    seen.page.wait_for_selector("text=2 / 50")
    seen.page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    seen.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    for number in (3, 4, 5):
        service.append_event(lease, step(number))
    seen.page.evaluate("Object.defineProperty(document, 'hidden', {value: false, configurable: true})")
    seen.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    seen.page.wait_for_selector("text=5 / 50")
    assert "reward mean 0.050" in seen.page.inner_text(".chart .legend >> nth=0")
    service.set_state(lease, JobState.COMPLETED)
    seen.page.wait_for_selector(".state.completed")
    assert seen.wrong == []


def test_pauses_after_a_question_with_a_key_that_may(chromium, gateway, client, spec):
    job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
    reader = gateway.store.keys.create(gateway.tenants["ada"], "screen", read_only=True)
    looking = Seen(chromium, gateway, reader)
    looking.open(f"/jobs/{job_id}", "text=Settings as they took effect")
    assert looking.page.locator("button:has-text('Pause')").count() == 0
    acting = Seen(chromium, gateway, gateway.keys["ada"])
    acting.open(f"/jobs/{job_id}", "text=Settings as they took effect")
    acting.page.click("button:has-text('Pause')")
    acting.page.click("dialog button:has-text('Keep as it is')")
    assert client.get(f"/v1/jobs/{job_id}").json()["state"] == "queued"
    acting.page.click("button:has-text('Pause')")
    acting.page.click("dialog button:has-text('Pause')")
    acting.page.wait_for_selector(".state.paused")
    acting.page.click("text=Log out")
    acting.page.wait_for_selector("text=API key")
    assert (acting.wrong, looking.wrong) == ([], [])


def test_says_in_a_sentence_what_cannot_be_shown(chromium, gateway):
    seen = Seen(chromium, gateway, gateway.keys["ada"])
    for path in ("/jobs/job-never", "/jobs/job-never/episodes/x", "/jobs/job-never/episodes", "/nonsense"):
        seen.open(path, ".problem")
    assert seen.wrong == []
