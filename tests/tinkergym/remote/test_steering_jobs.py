"""Pausing, resuming and changing a job from the client, and what is said about it."""

import re
import threading
from pathlib import Path

import pytest

import tinkergym as tg
from backend.testing.scripted_service import ScriptedService
from tests.tinkergym.reporting.jobs import step_event
from tinkergym.errors import ConflictError, InvalidRequestError, JobFailedError
from tinkergym.remote.estimate import (
    PROBE_STEPS,
    Estimate,
    _training_seconds,
    estimate_from,
    estimate_from_earlier,
    probe_of,
)
from tinkergym.remote.job import Job
from tinkergym.schema.events import JobState, UpdateEvent
from tinkergym.schema.parsing import parse_spec

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "running_jobs.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
BOARD = "board/TicTacToeVs-v0"


goes_on = threading.Event()
goes_on.set()


class Echo(tg.SingleTurnEnv):
    def ask(self, options):
        return "say b2"

    def score(self, answer):
        assert goes_on.wait(120)
        return float(answer == "b2")


@pytest.fixture
def service():
    with ScriptedService(lambda prompt: "b2", environments=[BOARD]) as service:
        yield service


@pytest.fixture
def client(service):
    with tg.Client(service.url, service.api_key) as client:
        yield client


@pytest.fixture
def job(client):
    """One that has not ended, and that nobody plays at the moment."""
    goes_on.clear()
    job = client.train(Echo, steps=3, algorithm={"group_size": 2, "groups_per_step": 1})
    job.pause()
    goes_on.set()
    return job


def test_keeps_waiting_for_a_paused_job(job, monkeypatch):
    said = []

    def warn(text, **_):
        said.append(text)
        job.resume()

    monkeypatch.setattr("warnings.warn", warn)
    assert job.wait(progress=False).state is JobState.COMPLETED
    assert len(said) == 1
    assert "paused" in said[0]


def test_shows_changes_in_settings_log_and_notebook(client, job):
    view = job.update(learning_rate=5e-4, budget=tg.Budget(hours=2))
    assert (view.spec.algorithm.learning_rate, view.spec.budget.hours) == (5e-4, 2)
    bodies = [event.body for event in job.log() if isinstance(event.body, UpdateEvent)]
    assert {change.name for body in bodies for change in body.changes} == {"learning_rate", "budget"}
    assert "learning_rate 0.001 -&gt; 0.0005" in job._repr_html_()


def test_rejects_unchangeable_with_what_can_be_changed(job):
    with pytest.raises(InvalidRequestError) as refused:
        job.update(sampling={"temperature": 0.5})
    assert refused.value.field == "sampling"


def test_neither_pauses_nor_changes_ended_job(client):
    job = client.train(BOARD, steps=1)
    with pytest.raises(ConflictError):
        job.pause()


def test_requires_a_bound_in_a_budget():
    with pytest.raises(InvalidRequestError):
        tg.Budget()


def test_runs_the_pages_code_from_top_to_bottom(service, monkeypatch):
    monkeypatch.setenv("TINKERGYM_URL", service.url)
    monkeypatch.setenv("TINKERGYM_API_KEY", service.api_key)
    service.jobs.most_steps = PROBE_STEPS  # Otherwise the page's job would have ended.
    names = {"__name__": "page"}
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), names)
    names["client"].close()
    assert names["job"].spec.algorithm.learning_rate == 5e-4


# --- estimates ---


@pytest.mark.parametrize("kind", ["rl", "distillation"])
def test_tries_few_steps_for_estimate_and_leaves_no_job(client, kind):
    more = {"teacher": "nano"} if kind == "distillation" else {}
    found = client.estimate(BOARD, kind=kind, steps=40, budget=tg.Budget(tokens=1), **more)
    assert isinstance(found, Estimate)
    assert found.steps == 40
    assert client.jobs() == []
    assert "40 steps" in str(found)


def test_makes_valid_probe_of_a_valid_job():
    game = {"environment": {"id": "board/TicTacToe-v0"}, "steps": 100, "best_by": "x first"}
    evaluate = tg.EvaluateEvery(10, name="x first", agent="x")
    agents = {"x": tg.Train(algorithm=tg.GRPO(warmup_steps=50)), "o": tg.opponents.Scripted("random")}
    spec = parse_spec({**game, "evaluate": [evaluate], "agents": agents})
    probe = probe_of(spec)
    again = parse_spec(probe.model_dump(mode="json"))
    assert (again.steps, again.evaluate, again.agents["x"].algorithm.warmup_steps) == (PROBE_STEPS, [], 0)
    assert again.agents["o"] == spec.agents["o"]


@pytest.mark.parametrize("error", [JobFailedError("it failed"), KeyboardInterrupt()])
def test_leaves_no_job_after_failed_or_interrupted_probe(client, monkeypatch, error):
    def wait(self, **_):
        raise error

    monkeypatch.setattr(Job, "wait", wait)
    with pytest.raises(type(error)):
        client.estimate(Echo, steps=40)
    assert client.jobs() == []


class Probe:
    """A finished probe whose steps all sampled and trained the same."""

    id, deleted = "job-1", False

    def __init__(self, job, **step):
        self.job, self.step = job, step

    def wait(self, **_):
        return self.view()

    def log(self):
        return [step_event(number, number, **self.step) for number in range(1, PROBE_STEPS + 1)]

    def view(self):
        return self.job.view().model_copy(update={"state": JobState.COMPLETED})

    def delete(self):
        self.deleted = True


def test_counts_evaluations_of_each_environment_in_an_estimate(job):
    mixed = {
        "environments": [{"id": "own/A-v0", "weight": 0.5}, {"id": "own/B-v0", "weight": 0.5}],
        "steps": 40,
        "evaluate": [tg.EvaluateEvery(10, episodes=64)],
    }
    steps = {"episodes": 128, "sampled_tokens": 1000, "trained_tokens": 900, "sampling_seconds": 0.5}
    probe = Probe(job, **steps)
    alone = estimate_from(parse_spec({**mixed, "evaluate": []}), probe)
    evaluated = estimate_from(parse_spec(mixed), probe)
    assert probe.deleted
    assert alone.tokens == 40 * 1900
    # Before, after and every 10 steps: five times 64 episodes in each of two environments.
    assert evaluated.tokens - alone.tokens == 5 * 1000
    assert evaluated.seconds - alone.seconds == pytest.approx(5 * 0.5)


def test_rejects_estimate_of_a_kind_that_does_not_exist(client):
    with pytest.raises(InvalidRequestError) as refused:
        client.estimate(BOARD, kind="rlhf", steps=4)
    assert refused.value.field == "kind"


def test_estimates_by_an_earlier_job_of_the_same_size(client):
    small = client.train(BOARD, steps=4).view().model_copy(update={"used_seconds": 8.0, "used_tokens": 400})
    large = client.train(BOARD, steps=4, algorithm=tg.GRPO(groups_per_step=32)).spec
    longer = small.spec.model_copy(update={"steps": 100})
    found = estimate_from_earlier(longer, [small])
    assert (found.steps, found.seconds, found.tokens) == (100, 200.0, 10_000)
    assert estimate_from_earlier(large, [small]) is None
    several = small.spec.algorithm.model_copy(update={"updates_per_step": 4})
    assert estimate_from_earlier(longer.model_copy(update={"algorithm": several}), [small]) is None


def test_measures_training_time_by_steps_of_probe():
    def step(number, seconds, **parts):
        metrics = {f"time/{name}": took for name, took in parts.items()}
        return step_event(number, number, step_seconds=seconds, metrics=metrics).body

    steps = [step(1, 30.0), step(2, 2.0), step(3, 3.0, checkpoint=1.0), step(4, 50.0), step(5, 2.0)]
    spec = parse_spec({"environment": {"id": BOARD}, "steps": 101, "checkpoint_every": 20})
    # 28 s more for the first, 101 steps of 2 s, and five checkpoints of 1 s; what held step 4 up counts not.
    assert _training_seconds(spec, steps) == pytest.approx(28 + 202 + 5)
    written = {"kind": "sft", "data": "ab" * 32, "steps": 100, "held_out": 0.1, "eval_every": 10}
    steps = [step(1, 5.0, evaluate=4.0), step(2, 1.0), step(3, 1.5, publish=0.5), step(4, 5.0, evaluate=4.0)]
    assert _training_seconds(parse_spec(written), steps) == pytest.approx(100 + 9 * 0.5 + 10 * 4.0)
