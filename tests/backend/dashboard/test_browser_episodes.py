"""What a person does with episodes and checkpoints in a real browser; see `test_browser`."""

import json

import pytest

from tests.backend.dashboard.test_browser import Seen, episode, saved, seat, step
from tests.backend.gateway.test_routes_data import sft, upload
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.evaluation import BranchRequest, EvaluationLine, EvaluationRequest
from tinkergym.schema.events import EvaluationEvent
from tinkergym.trajectory.trajectory import Trajectory

pytestmark = [pytest.mark.service, pytest.mark.full("many pages in a browser")]


def lines(*records):
    """The body of a streamed answer."""
    return "".join(EvaluationLine(**one).model_dump_json() + "\n" for one in records)


@pytest.fixture
def seen(chromium, gateway):
    found = Seen(chromium, gateway, gateway.keys["ada"])
    yield found
    assert found.wrong == []
    found.page.close()


def test_evaluates_a_checkpoint_on_the_held_out_split(seen, gateway, client, spec):
    held_out = {"steps": 1, "environment": "math/Arithmetic-v0", "env_kwargs": {"split": "test"}}
    learned = sft(upload(client, 4, 5), evaluate=[held_out])
    played = {**spec, "evaluate": [{"steps": 1, "env_kwargs": {"opponent": "perfect"}}]}
    (record,) = episode("job", 0, "plain").trajectories
    answer = lines({"episode_id": "0", "trajectory": record})
    asked = []
    for body in (learned, played):
        job_id = client.post("/v1/jobs", json=body).json()["job_id"]
        saved(gateway, job_id, "")
        seen.page.route("**/v1/evaluations", lambda route: route.fulfill(body=answer))
        seen.open(f"/jobs/{job_id}", "button:has-text('Evaluate')")
        with seen.page.expect_request("**/v1/evaluations") as sent:
            seen.page.click("button:has-text('Evaluate')")
        wanted = EvaluationRequest.model_validate(sent.value.post_data_json)
        assert (wanted.policy, wanted.policy_version) == (job_id, 2)
        asked.append(wanted.environment.model_dump())
        seen.page.wait_for_selector(f"text=of {wanted.environment.id}")
    kwargs = {**spec["environment"].get("kwargs", {}), "opponent": "perfect"}
    assert asked == [
        {"id": "math/Arithmetic-v0", "kwargs": {"split": "test"}},
        {"id": spec["environment"]["id"], "kwargs": kwargs},
    ]


def test_offers_no_evaluation_where_the_service_cannot_play(seen, gateway, client, spec):
    local = {"steps": 1, "environment": "local/Mine-v0"}
    at_client = {**spec, "environment": {"id": "local/Mine-v0"}, "rollout": "client"}
    for body in (sft(upload(client, 4, 5), evaluate=[local]), at_client):
        job_id = client.post("/v1/jobs", json=body).json()["job_id"]
        saved(gateway, job_id, "")
        seen.open(f"/jobs/{job_id}", "button:has-text('Promote')")
        assert seen.page.locator("button:has-text('Evaluate')").count() == 0


def played(job_id, number, index, reward, said="plain", **changes):
    """An episode of one turn, with three tokens of which two were sampled."""
    one = seat(said)
    tokens = {"token_ids": [1, 2, 3], "loss_mask": [False, True, True]}
    one["segments"] = [{**tokens, "sampling_logprobs": [None, -0.1, -5.0]}]
    one["turns"] = [{**one["turns"][0], "end": 3, "reward": reward, "view": None, "metrics": {}}]
    one |= {"agent": "agent_0", "stop_reason": "terminated", "error": "", **changes}
    result = {"episode_id": f"{job_id}:{number}:{index}", "lease_id": "l", "trajectories": [one]}
    return EpisodeResult.model_validate(result)


@pytest.fixture
def run(gateway, client, spec):
    """A job with two steps of four episodes, which are one group each."""
    spec = {**spec, "algorithm": {"name": "grpo", "group_size": 4, "groups_per_step": 1}}
    job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
    lease = saved(gateway, job_id, "")
    service = gateway.store.service()
    for number, rewards in ((1, (0, 0.1, 0.2, 0.3)), (2, (0.3, 0.6, 0.7, 1))):
        episodes = [played(job_id, number, at, reward) for at, reward in enumerate(rewards)]
        if number == 2:
            episodes[3] = played(
                job_id, 2, 3, 1, "needle", terminated=False, truncated=True, stop_reason="turn_limit"
            )
        service.save_episodes(lease, number, episodes)
        service.append_event(lease, step(number))
    return job_id


def test_filters_episodes_by_what_a_person_chooses(seen, run):
    page, rows = seen.page, seen.page.locator(".virtual-row")

    def shows(count):
        page.wait_for_function(
            "(many) => document.querySelectorAll('.virtual-row').length === many", arg=count
        )

    seen.open(f"/jobs/{run}/episodes?from=2&to=2", ".virtual-row")
    shows(4)
    page.get_by_label("Steps").fill("1")  # the link left it out
    shows(8)
    bars = page.locator(".bins button:enabled")
    counted = 0
    for at in range(bars.count()):
        many = int(bars.nth(at).get_attribute("title").split()[0])
        bars.nth(at).click()
        shows(many)
        page.click("text=all returns")
        shows(8)
        counted += many
    assert counted == 8
    page.get_by_role("textbox", name="Return").fill("0.6")
    shows(3)
    page.get_by_label("Ended by").select_option("turn_limit")
    shows(1)
    assert "+0.350" in rows.inner_text()
    seen.open(f"/jobs/{run}/episodes", ".virtual-row")
    page.fill("input[type=search]", "needle")
    page.click("text=Search texts")
    shows(1)
    rows.locator("a").first.click()
    page.wait_for_selector("h1:has-text('Episode 2:3')")


def test_colors_tokens_by_what_is_known_of_them(seen, run):
    page, episode_id = seen.page, f"{run}:2:3"

    def with_texts(route):
        answer = route.fetch()
        known = {
            "texts": {"agent_0": {"segments": [["given", "sure", "odd"]]}},
            "logprob_gaps": {"agent_0": [[0.05, -0.05]]},
        }
        route.fulfill(response=answer, json={**answer.json(), **known})

    page.route(f"**/v1/jobs/{run}/episodes/*", with_texts)
    scores = {
        "request_id": "0 0",
        "policy_version": 2,
        "prompt_logprobs": [None, -0.1, -3.0],
        "prompt_entropies": [None, 0.0, 3.0],
    }
    page.route("**/v1/sample", lambda route: route.fulfill(body=json.dumps(scores) + "\n"))
    seen.open(f"/jobs/{run}/episodes/{episode_id}", ".token:has-text('odd')")

    def colors(mode):
        page.locator("select").first.select_option(mode)
        tokens = [page.locator(f".tokens .token:has-text('{text}')") for text in ("given", "sure", "odd")]
        return [one.evaluate("(span) => getComputedStyle(span).backgroundColor") for one in tokens]

    given, sure, odd = colors("source")
    assert sure == odd != given
    assert len(set(colors("surprise"))) == 3
    _, above, _ = colors("advantage")
    _, gap_above, gap_below = colors("gap")
    assert len({given, above, gap_above, gap_below}) == 4
    _, unknown, also = colors("entropy")
    assert unknown == also
    page.click("button:has-text('Read the tokens again')")
    page.wait_for_selector("text=read by the newest version")
    _, closed, open_ = colors("entropy")
    assert closed != open_
    page.click(".tokens .token:has-text('odd')")
    told = page.inner_text(".inspect")
    parts = dict(one.rsplit(" ", 1) for one in told.split(", ") if " " in one)
    assert ("id 3: " in told, float(parts["to its group"])) == (True, 0.35), told
    assert (float(parts["gap"]), float(parts["entropy"])) == (-0.05, 3.0), told


def test_continues_an_episode_with_a_policy_and_by_hand(seen, run):
    page, wanted, answers = seen.page, [], []

    def branched(route):
        wanted.append(BranchRequest.model_validate(route.request.post_data_json))
        route.fulfill(body=answers.pop(0))

    def line(number, reward, *, stop_reason="terminated", error="", shown="", turns=1):
        record = played("job", 1, number, reward).trajectories[0]
        changes = {"stop_reason": stop_reason, "error": error, "final_observation": shown}
        record = Trajectory.model_validate({**record.model_dump(), **changes, "turns": record.turns * turns})
        return {"episode_id": str(number), "trajectory": record}

    page.route("**/branch", branched)
    seen.open(f"/jobs/{run}/episodes/{run}:2:3", "button:has-text('Continue from here')")
    page.click("text=Continue from here")
    page.get_by_label("How often").fill("2")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Who answers").select_option(f"{run}@2")
    answers.append(lines(line(0, 1), line(1, 0)))
    page.click("text=Let it continue")
    page.wait_for_selector("text=2 of 2: mean return 0.500")
    first = wanted.pop()
    assert (first.turn, first.n, first.temperature, first.policy) == (1, 2, 0.5, f"{run}@2")
    steps = [
        (lines({"error": {"type": "NotReplayableError", "message": "It cannot."}}), "It cannot."),
        (lines(line(0, 0, stop_reason="turn_limit", shown="They answer b1.")), "They answer b1."),
        (
            lines(line(0, 1, stop_reason="turn_limit", error="agent 'o' reached its limit", turns=2)),
            "It is over: return 2",
        ),
    ]
    for number, (answer, text) in enumerate(steps):
        answers.append(answer)
        page.get_by_label("Take over by hand").fill(f"move {number}")
        page.click("text=Answer and see what comes")
        page.wait_for_selector(f"text={text}")
    # The refused answer was not kept.
    assert [one.actions for one in wanted] == [["move 0"], ["move 1"], ["move 1", "move 2"]]
    assert {one.n for one in wanted} == {0}


def test_draws_a_crossplay_with_its_ratings(seen, client, spec):
    game = {
        **spec,
        "environment": {"id": "board/TicTacToe-v0"},
        "rollout": "server",
        "agents": {"x": {"kind": "train"}, "o": {"kind": "train"}},
    }
    job_id = client.post("/v1/jobs", json=game).json()["job_id"]
    names = [f"{job_id}@1", "random"]
    counts = dict.fromkeys(
        ("wins", "draws", "losses", "forfeits_won", "forfeits_lost", "cut_off", "failed"), 1
    )
    cells = [
        {"row": row, "column": column, "mean_return": mean, "interval_95": [mean - 0.1, None], **counts}
        for row, column, mean in ((*names, 0.5), (*names[::-1], -0.5))
    ]
    ratings = [
        {"name": name, "step": at, "rating": 120.0 * (at or 0), "interval_95": [-5.0, None], "pairs": 20}
        for name, at in ((names[0], 1), (names[1], None))
    ]
    found = {
        "crossplay": {"players": [{"name": one} for one in names], "cells": cells},
        "ratings": {"ratings": ratings, "anchor": "random", "not_rated": {"forfeit": 3}},
    }
    seen.page.route("**/crossplay", lambda route: route.fulfill(body=f"\n{json.dumps(found)}\n"))
    seen.open(f"/jobs/{job_id}/games", "button:has-text('Play')")
    seen.page.get_by_label("Versions").fill("1")
    with seen.page.expect_request("**/crossplay") as asked:
        seen.page.click("button:has-text('Play')")
    assert asked.value.post_data_json == {"pairs": 20, "versions": [1], "against": ["random"]}
    for _ in range(2):  # it stays in the tab
        seen.page.wait_for_selector("caption:has-text('Mean return of the row')")
        rows = seen.page.locator(".matrix tbody tr").all_inner_texts()
        assert ["0.50" in rows[0], "0.40 to ?" in rows[0], "-0.50" in rows[1]] == [True] * 3
        assert "120" in seen.page.locator("table:has-text('best first') tbody tr").first.inner_text()
        assert "3 forfeit" in seen.page.inner_text(".played")
        seen.page.reload()


def test_says_which_differences_between_runs_are_significant(seen, gateway, client, spec):
    jobs = [client.post("/v1/jobs", json=spec).json()["job_id"] for _ in range(2)]
    for job_id, mean in zip(jobs, (0.2, 0.5), strict=True):
        lease = saved(gateway, job_id, "")
        for name, agent, spread in (
            ("sure", "", 0.1),
            ("vague", "", 0.4),
            ("seat", "x", 0.1),
            ("seat", "o", 0.4),
        ):
            bounds = {"mean": mean, "low": mean - spread, "high": mean + spread}
            about = {"name": name, "agent": agent, "step": 1, "policy_version": 1, "episodes": 50}
            gateway.store.service().append_event(lease, EvaluationEvent(**about, **bounds, failed_episodes=0))
    seen.open(f"/compare/{'/'.join(jobs)}", "text=Newest evaluations")
    for name, says in (
        ("sure", "significant"),
        ("vague", "may be chance"),
        ("seat (x)", "significant"),
        ("seat (o)", "may be chance"),
    ):
        row = seen.page.locator(f"table:has(caption:text-is('{name}')) tbody tr").nth(1)
        assert row.locator("td").last.inner_text().startswith("+0.300")
        assert says in row.inner_text()


def test_labels_and_archives_a_run(seen, gateway, chromium, run):
    page = seen.page
    seen.open(f"/jobs/{run}", "#label-name")
    for name, text in (("name", "Sunday's"), ("tags", "best, of week"), ("note", "Look at step 2.")):
        page.fill(f"#label-{name}", text)
    page.click("form.label button")
    page.wait_for_selector("h1:has-text('Sunday')")
    reader = gateway.store.keys.create(gateway.tenants["ada"], "screen", read_only=True)
    looking = Seen(chromium, gateway, reader)
    looking.open(f"/jobs/{run}", "text=Look at step 2.")
    assert looking.page.locator("#label-name").count() == 0
    assert looking.wrong == []
    seen.open("", "h1:has-text('Jobs')")
    page.fill("#search", "of week")
    page.wait_for_selector('a:text-is("Sunday\'s")')
    page.click(f"#archive-{run}")
    page.wait_for_selector("text=No job matches")
    page.get_by_label("archived").check()
    page.click(f"#archive-{run}")
    page.get_by_label("archived").uncheck()
    page.wait_for_selector('a:text-is("Sunday\'s")')


def test_logs_in_by_a_link_only_on_its_own_machine(chromium, gateway, run):
    key, path = gateway.keys["ada"], f"/dashboard/jobs/{run}"
    page = chromium.new_context().new_page()
    page.goto(f"{gateway.url}/dashboard/login?next={path}#{key}")
    page.wait_for_selector("text=Settings as they took effect")
    assert page.url == f"{gateway.url}{path}"
    other = chromium.new_context().new_page()
    other.goto(f"{gateway.url.replace('127.0.0.1', 'localhost')}/dashboard/login?next={path}#{key}")
    other.wait_for_load_state("networkidle")
    assert other.input_value("#key") == ""
    other.goto(f"{gateway.url}/dashboard/login?next={path}#tg-never")
    other.wait_for_selector("[role=alert]")
    assert other.locator("#key").count() == 1
