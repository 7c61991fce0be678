from __future__ import annotations

import pytest

from backend.episodes.episode_requests import step_requests
from backend.jobs.completions import completion_metrics, waste_warnings
from tests.backend.seats import result_of
from tinkergym.algorithms import GRPO
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.jobs.parts import EnvironmentRef, Sampling
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import Train
from tinkergym.testing.made_up_episodes import one_turn_episode
from tinkergym.trajectory.trajectory import StopReason

SPEC = RLSpec(
    environment=EnvironmentRef(id="x"),
    steps=1,
    algorithm=GRPO(group_size=4, groups_per_step=2),
    sampling=Sampling(max_turn_tokens=8),
)


def episode(reward=0.0, *, tokens=1, observation="go", action="gone", cut=False, **settings):
    made = one_turn_episode(reward, **settings)
    turn = made.turns[0].model_copy(
        update={
            "end": 1 + tokens,
            "observation": observation,
            "action": action,
            "finish_reason": "length" if cut else "stop",
        }
    )
    return made.model_copy(update={"turns": [turn]})


def played(trajectories, spec=SPEC):
    requests = step_requests("job-1", spec, 1)
    return [
        (request, EpisodeResult(episode_id=request.episode_id, lease_id="l", trajectories=[trajectory]))
        for request, trajectory in zip(requests, trajectories, strict=True)
    ]


def warned(*trajectories, rewards_count=True):
    found = waste_warnings(
        1, played(trajectories), rewards_count=rewards_count, compares_siblings=rewards_count
    )
    return {warning.name: warning for warning in found}


FINE = [episode(float(number)) for number in range(8)]


def test_takes_lengths_and_shares_over_the_completions():
    cut = episode(tokens=8, cut=True, stop_reason=StopReason.TOKEN_LIMIT)
    found = completion_metrics(played([*[episode(tokens=2)] * 5, cut, cut, episode(action=" ")]))
    assert found == pytest.approx(
        {
            "completions/mean_length": 27 / 8,
            "completions/min_length": 1,
            "completions/max_length": 8,
            "completions/mean_terminated_length": 11 / 6,
            "completions/clipped_ratio": 2 / 8,
            "completions/empty_ratio": 1 / 8,
            "episodes/turns_mean": 1,
            "episodes/cut_ratio": 2 / 8,
        }
    )


def test_warns_of_nothing_in_a_step_that_is_in_order():
    assert warned(*FINE) == {}


@pytest.mark.parametrize(("cut", "enough"), [(4, "54"), (8, "a sufficient limit is unknown")])
def test_warns_of_many_completions_at_limit_and_names_enough(cut, enough):
    # Half of them end within 8 tokens, so 1 % is left after log(0.01) / log(0.5) times 8.
    some = [episode(float(number), tokens=8, cut=True) for number in range(cut)]
    warning = warned(*some, *FINE[cut:])["completions_cut"]
    assert warning.count == cut
    assert enough in warning.message


def test_measures_a_seat_by_its_own_limit():
    found = cut_by_seats(x=Train(sampling=Sampling(max_turn_tokens=4)), o=Train())
    assert found["completions_cut"].count == 8
    assert "max_turn_tokens=4" in found["completions_cut"].message


def cut_by_seats(**agents):
    spec = SPEC.model_copy(update={"agents": agents})
    finished = [
        (request, result_of(request, *(episode(tokens=4, cut=True, agent=agent) for agent in agents)))
        for request in step_requests("job-1", spec, 1)
    ]
    found = waste_warnings(1, finished, rewards_count=False)
    return {warning.name: warning for warning in found}


def test_gives_each_seat_its_own_lengths():
    spec = SPEC.model_copy(update={"agents": {"x": Train(), "o": Train()}})
    lengths = {"x": 2, "o": 6}
    finished = [
        (request, result_of(request, *(episode(tokens=n, agent=agent) for agent, n in lengths.items())))
        for request in step_requests("job-1", spec, 1)
    ]
    found = completion_metrics(finished)
    assert [found[f"seat/{agent}/completions/mean_length"] for agent in "xo"] == [2, 6]


def test_advises_no_longer_turns_when_the_episodes_limit_cut_completions():
    assert warned(*[episode(float(number), tokens=3, cut=True) for number in range(8)]) == {}


def test_reports_completions_without_text():
    assert warned(*[episode(float(n), action="") for n in range(4)], *FINE[4:]).keys() == {
        "empty_completions"
    }


def test_tells_of_all_equal_rewards_where_they_are_learned_from():
    assert warned(*[episode(1.0)] * 8).keys() == {"equal_rewards"}
    assert warned(*[episode(1.0)] * 8, rewards_count=False) == {}


def test_notices_environment_that_ignores_its_seed_by_unequal_group_starts():
    starts = [episode(float(number), observation=str(number // 4)) for number in range(8)]
    assert warned(*starts) == {}
    starts[6] = episode(6.0, observation="another")
    warning = warned(*starts)["unequal_starts"]
    assert warning.count == 1
