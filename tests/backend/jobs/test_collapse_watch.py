"""The collapse guard gives each alarm once, with the last good version."""

from __future__ import annotations

import pytest

from backend.episodes.episode_requests import step_requests
from backend.jobs.collapse_watch import CollapseWatch, command_from, figures_of
from tests.backend.seats import result_of
from tinkergym.algorithms import GRPO
from tinkergym.schema.fixed_players import League, Scripted
from tinkergym.schema.jobs.parts import CollapseGuard, EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import SharedWith, Train
from tinkergym.testing.made_up_episodes import one_turn_episode
from tinkergym.trajectory.trajectory import StopReason

SPEC = RLSpec(
    environment=EnvironmentRef(id="board/TicTacToe-v0"),
    agents={"x": Train(), "o": SharedWith("x")},
    self_play=League(anchors=[Scripted("random")], anchor_share=0.5, current_share=0.5),
    algorithm=GRPO(group_size=2, groups_per_step=4),
    steps=100,
)


def games(step, anchor, own=0.0, drawn=0.0):
    played = []
    for request in step_requests("job-1", SPEC, step):
        against_anchor = request.sampled_seats != ["x", "o"]
        seats = [
            one_turn_episode(anchor if against_anchor else own, agent=agent, drawn=drawn)
            for agent in request.sampled_seats
        ]
        played.append((request, result_of(request, *seats)))
    return played


def watch(**guard):
    return CollapseWatch(SPEC, CollapseGuard(window=2, **guard))


def looked(one, rounds, first=1):
    """Return the names and steps of the alarms of some steps."""
    return [
        (warning.name, warning.step, warning.message)
        for step, settings in enumerate(rounds, first)
        for warning in one.record_step(
            step, games(step, **settings), is_saved=True, come_back=lambda v: f"go {v}"
        )
    ]


def test_alarms_on_fall_against_anchors_and_names_version_before_it():
    rounds = [{"anchor": score} for score in (0.2, 0.6, 0.6, 0.6, 0.3, 0.1, 0.1)]
    ((name, step, message),) = looked(watch(), rounds)
    assert (name, step) == ("collapse_anchor_reward", 6)
    assert "go 4" in message or "go 5" in message


def test_raises_no_alarm_where_all_games_go_worse():
    rounds = [{"anchor": score, "own": score} for score in (0.6, 0.6, 0.1, 0.1)]
    assert not looked(watch(), rounds)


@pytest.mark.parametrize(
    ("guard", "played", "name"),
    [
        ({"least_entropy": 0.6}, {}, "collapse_entropy"),  # the record's tokens have 0.5
        ({}, {"drawn": 1.0}, "collapse_draws"),
    ],
)
def test_alarms_on_sure_actions_and_drawn_games(guard, played, name):
    assert [one[0] for one in looked(watch(**guard), [{"anchor": 0.0, **played}] * 5)] == [name]


def test_alarms_on_games_as_long_as_limit_allows():
    short = SPEC.model_copy(update={"limits": SPEC.limits.model_copy(update={"max_turns": 1})})
    assert figures_of(short, games(1, 0.0))["long"] == 1.0
    assert figures_of(SPEC, games(1, 0.0))["long"] == 0.0
    cut = [
        (
            request,
            result.model_copy(
                update={
                    "trajectories": [
                        one.model_copy(
                            update={
                                "terminated": False,
                                "truncated": True,
                                "stop_reason": StopReason.TRUNCATED,
                            }
                        )
                        for one in result.trajectories
                    ]
                }
            ),
        )
        for request, result in games(1, 0.0)
    ]
    assert figures_of(SPEC, cut)["long"] == 1.0


def test_tells_of_a_fall_without_other_games_if_none_exist():
    only = SPEC.model_copy(update={"agents": {"x": Train(), "o": Scripted("random")}, "self_play": False})
    one, alarms = CollapseWatch(only, CollapseGuard(window=2)), []
    for step, score in enumerate([0.6] * 3 + [0.0] * 3, 1):
        played = [
            (request, result_of(request, one_turn_episode(score, agent="x")))
            for request in step_requests("job-1", only, step)
        ]
        alarms += one.record_step(step, played, is_saved=True, come_back=str)
    assert [alarm.name for alarm in alarms] == ["collapse_anchor_reward"]
    assert "other games" not in alarms[0].message


def test_sees_as_resumed_guard_what_an_undisturbed_one_sees():
    rounds = [{"anchor": score} for score in (0.6, 0.6, 0.6, 0.1, 0.1, 0.6, 0.6, 0.1, 0.1)]
    undisturbed = looked(watch(), rounds)
    first = watch()
    before = looked(first, rounds[:4])
    second = watch()
    second.restore(first.state())
    after = looked(second, rounds[4:], first=5)
    assert before + after == undisturbed
    assert len(undisturbed) == 2


def test_shows_collapse_of_one_policy_beside_one_that_does_well():
    pair = SPEC.model_copy(update={"agents": {"x": Train(), "o": Train()}})
    one = CollapseWatch(pair, CollapseGuard(window=2, anchor_drop=0.5))
    alarms = []
    for step, (x, o) in enumerate([(0.0, 0.6)] * 3 + [(0.6, 0.0)] * 3, 1):
        played = [
            (request, result_of(request, one_turn_episode({"x": x, "o": o}[agent], agent=agent)))
            for request in step_requests("job-1", pair, step)
            for agent in request.sampled_seats[:1]
            if len(request.sampled_seats) == 1
        ]
        alarms += one.record_step(step, played, is_saved=True, come_back=str)
    assert [alarm.name for alarm in alarms] == ["collapse_anchor_reward"]
    assert "of o against anchors" in alarms[0].message


def test_begins_every_policy_on_way_back_with_own_version():
    assert command_from(SPEC, "job-1", 40).endswith(" ... --from job-1/x@40")
    assert command_from(SPEC, "job-1", 0).endswith(" ...")
    pair = SPEC.model_copy(update={"agents": {"x": Train(), "o": Train()}})
    command = command_from(pair, "job-1", 40)
    assert "--from" not in command
    assert "agents.x.initial_policy=job-1/x@40" in command
    assert "agents.o.initial_policy=job-1/o@40" in command
