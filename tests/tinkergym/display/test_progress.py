import io

import pytest
from rich.console import Console

from tinkergym.display.progress import TrainingDisplay, duration
from tinkergym.schema.events import (
    CheckpointEvent,
    EvaluationEvent,
    Event,
    JobState,
    StateEvent,
    StepEvent,
    WarningEvent,
)
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec

SPEC = RLSpec(environment=EnvironmentRef(id="board/TicTacToeVs-v0"), steps=4)


def step(number: int, reward: float = 0.5) -> StepEvent:
    return StepEvent(
        step=number,
        steps=4,
        policy_version=number,
        reward_mean=reward,
        reward_std=1.0,
        loss=-0.01,
        episodes=128,
        failed_episodes=3,
        stop_reasons={},
        sampled_tokens=1000,
        turns=10,
        tokens_per_second=1234.5,
        step_seconds=1.5,
        sampling_seconds=1.0,
        learning_seconds=0.5,
        seconds_left=75.0,
    )


def shown(*bodies, terminal: bool) -> str:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=120, color_system=None)
    with TrainingDisplay("job-1", SPEC, console=console) as display:
        for number, body in enumerate(bodies, 1):
            display.show(Event(seq=number, job_id="job-1", time=0.0, body=body))
    return output.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_shows_reward_loss_speed_and_time_left(terminal):
    text = shown(StateEvent(state=JobState.RUNNING), step(2), terminal=terminal)
    for part in ("2/4", "+0.500", "-0.0100", "1,234 tokens/s", "1 min 15 s left", "3"):
        assert part in text


@pytest.mark.parametrize("terminal", [True, False])
def test_shows_reward_of_each_seat_and_loss_of_each_policy(terminal):
    metrics = {
        "seat/x/reward_mean": 0.25,
        "seat/o/reward_mean": -0.75,
        "policy/x/loss": 0.5,
        "policy/o/loss": -0.125,
    }
    played = step(1).model_copy(update={"reward_mean": None, "loss": None, "metrics": metrics})
    output = shown(played, terminal=terminal)
    for number in ("+0.250", "-0.750", "x +0.5000", "o -0.1250"):
        assert number in output
    assert "none" not in output


@pytest.mark.parametrize("terminal", [True, False])
def test_shows_how_often_and_how_far_chosen_answers_win(terminal):
    metrics = {"accuracy": 0.75, "reward_margin": 0.0123, "logprob_chosen": -77.0}
    text = shown(step(2).model_copy(update={"records": 32, "metrics": metrics}), terminal=terminal)
    for part in ("-0.0100", "accuracy 0.750", "reward_margin +0.0123"):
        assert part in text
    assert "-77" not in text


@pytest.mark.parametrize("terminal", [True, False])
def test_shows_how_far_the_student_is_from_its_teacher(terminal):
    metrics = {"reverse_kl": 0.75, "teacher_logprob": -77.0}
    text = shown(step(2).model_copy(update={"metrics": metrics}), terminal=terminal)
    assert "reverse_kl 0.7500" in text
    assert "-77" not in text


@pytest.mark.parametrize("terminal", [True, False])
def test_shows_only_loss_of_job_on_conversations(terminal):
    text = shown(step(2).model_copy(update={"records": 32, "metrics": {}}), terminal=terminal)
    assert "-0.0100" in text
    assert "accuracy" not in text


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (
            StateEvent(state=JobState.QUEUED, reason="loading the model 'nano'", attempt=1),
            "loading the model 'nano'",
        ),
        (StateEvent(state=JobState.STARTING, attempt=2), "loading the last checkpoint"),
        (
            StateEvent(state=JobState.RUNNING, reason="waits up to 20 s for the leases of a client"),
            "waits up to 20 s",
        ),
        (StateEvent(state=JobState.RUNNING, attempt=2), "working on the next step"),
    ],
)
def test_shows_what_a_job_waits_for_instead_of_time_left(state, text):
    last = shown(step(2), state, terminal=True).rsplit("2/4", 1)[1]
    assert text in last
    assert "left" not in last.partition("\n")[0]


def test_prints_plain_lines_where_output_is_no_terminal():
    text = shown(
        StateEvent(state=JobState.WAITING_FOR_CLIENT, reason="no worker for 30 s"),
        step(1),
        CheckpointEvent(step=1, policy_version=1, path="/there/step-000001", sha256="0"),
        terminal=False,
    )
    assert "\x1b" not in text
    assert "waiting_for_client: no worker for 30 s" in text
    assert "checkpoint of step 1, on the service's machine: /there/step-000001" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_prints_warning_in_full_once_with_its_traceback(terminal):
    message, episodes = "Traceback [most recent]\nKeyError: 'x'", ["job-1:1:3"]
    warning = WarningEvent(name="environment_error", message=message, episodes=episodes)
    text = shown(warning, warning, terminal=terminal)
    assert text.count("job-1:1:3") == 1
    assert text.count("KeyError: 'x'") == 1
    assert "Traceback [most recent]" in text


def test_returns_each_step_once_although_a_resume_repeats_it():
    bodies = [step(1), step(2), step(2, reward=0.9), step(3)]
    events = [Event(seq=n, job_id="job-1", time=0.0, body=body) for n, body in enumerate(bodies, 1)]
    with TrainingDisplay("job-1", SPEC, console=Console(file=io.StringIO())) as display:
        steps = display.watch(events)
    assert [(s.step, s.reward_mean) for s in steps] == [(1, 0.5), (2, 0.9), (3, 0.5)]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (42, "42 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")]
)
def test_writes_time_as_people_say_it(seconds, text):
    assert duration(seconds) == text


def test_counts_alarms_at_the_end():
    done = EvaluationEvent(
        name="held", step=2, policy_version=2, episodes=4, failed_episodes=0, mean=0.5, overlap=0.5
    )
    text = shown(
        step(1), step(2), done, WarningEvent(name="equal_rewards", message="m", step=2), terminal=False
    )
    last = text.splitlines()[-1]
    assert [
        name
        for name in ("failed_episodes ×6", "evaluation_overlap ×1", "equal_rewards ×1")
        if name not in last
    ] == []
    assert "alarms" not in shown(step(1).model_copy(update={"failed_episodes": 0}), terminal=False)
