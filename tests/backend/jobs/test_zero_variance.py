"""Steps that teach nothing: the warning names what explains it, and a collapsed policy."""

from __future__ import annotations

import pytest

from backend.episodes.episode_requests import step_requests
from backend.jobs.zero_variance import nothing_to_compare, policy_collapsed
from tests.backend.jobs.played_episodes import episode, job
from tests.backend.seats import result_of, two_seats
from tinkergym.algorithms import GRPO
from tinkergym.schema.events import StepEvent


def step_with(**metrics):
    return StepEvent.model_construct(step=7, metrics=metrics)


SILENT = step_with(zero_variance_groups=1.0, compared_groups=1.0)


def turn_with(trajectory, **changes):
    turns = [turn.model_copy(update=changes) for turn in trajectory.turns]
    return trajectory.model_copy(update={"turns": turns})


def played(*trajectories, **algorithm):
    spec = job(GRPO(group_size=len(trajectories), groups_per_step=1, **algorithm))
    return spec, [
        (request, result_of(request, one))
        for request, one in zip(step_requests("job-1", spec, 1), trajectories, strict=True)
    ]


def two_seated(x, o):
    spec = job(GRPO(group_size=2, groups_per_step=1))
    seats = [one.model_copy(update={"agent": agent}) for agent, one in (("x", x), ("o", o))]
    return [(one, result_of(one, *seats)) for one in map(two_seats, step_requests("job-1", spec, 1))]


PLAIN = episode((0.0, 2, "stop"))
ILLEGAL = turn_with(PLAIN, metrics={"illegal_move": 1.0})
TRIED = turn_with(PLAIN, metrics={"illegal_moves": 1.0})
CUT = episode((0.0, 2, "length"))
UNMOVED = episode().model_copy(update={"segments": []})


@pytest.mark.parametrize(
    ("episodes", "named"),
    [
        ([ILLEGAL, ILLEGAL], "illegal moves in 100%"),
        ([TRIED, TRIED, PLAIN], "illegal moves in 67%"),
        ([ILLEGAL, UNMOVED, UNMOVED], "illegal moves in 100%"),
        ([CUT, CUT, CUT, PLAIN], "75% of the completions"),
        ([UNMOVED, UNMOVED], "never had a turn"),
    ],
)
def test_names_what_explains_equal_rewards(episodes, named):
    _, found = played(*episodes)
    warning = nothing_to_compare(SILENT, found)
    assert (warning.name, named in warning.message) == ("nothing_to_compare", True)


@pytest.mark.parametrize("other", [ILLEGAL, CUT, UNMOVED])
def test_blames_nothing_that_half_of_episodes_lack(other):
    _, found = played(PLAIN, other)
    _, plain = played(PLAIN, PLAIN)
    assert nothing_to_compare(SILENT, found).message == nothing_to_compare(SILENT, plain).message


def test_names_seat_that_never_moves_and_why():
    event = step_with(**{f"policy/{a}/{n}_groups": 2.0 for a in "xo" for n in ("zero_variance", "compared")})
    message = nothing_to_compare(event, two_seated(ILLEGAL, UNMOVED)).message
    assert "illegal moves in 100% of the turns of 'x'" in message
    assert "'o' never had a turn" in message


def sure(trajectory, logprob=-0.001):
    """Return an episode whose tokens were all but certain."""
    (segment,) = trajectory.segments
    known = [logprob if trained else None for trained in segment.loss_mask]
    return trajectory.model_copy(
        update={"segments": [segment.model_copy(update={"sampling_logprobs": known})]}
    )


def test_tells_collapse_with_action_and_causes():
    spec, found = played(*[sure(turn_with(ILLEGAL, action="wait"))] * 4, learning_rate=0.003)
    (warning,) = policy_collapsed(spec, SILENT, found)
    assert (warning.name, warning.step) == ("policy_collapsed", 7)
    for named in ("'wait'", "learning_rate=0.003", "entropy_coefficient", "illegal moves in 100%"):
        assert named in warning.message


def test_names_no_missing_term_that_is_there():
    spec, found = played(*[sure(PLAIN)] * 2, entropy_coefficient=0.01)
    assert "entropy_coefficient" not in policy_collapsed(spec, SILENT, found)[0].message


@pytest.mark.parametrize(
    ("episodes", "event"),
    [
        ([sure(PLAIN, -0.5)] * 2, SILENT),
        ([UNMOVED] * 2, SILENT),
        ([sure(PLAIN)] * 2, step_with(zero_variance_groups=2.0, compared_groups=4.0)),
        ([sure(PLAIN)] * 2, step_with(grad_norm=0.0)),
    ],
)
def test_keeps_quiet_without_both_signs(episodes, event):
    spec, found = played(*episodes)
    assert policy_collapsed(spec, event, found) == []
