from backend.episodes.episode_requests import step_requests
from backend.jobs.environment_report import per_environment
from tests.backend.seats import result_of
from tinkergym.algorithms import GRPO
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.testing.episodes import one_turn_episode
from tinkergym.trajectory.trajectory import StopReason

SEVERAL = [{"id": "easy", "weight": 0.5}, {"id": "hard", "weight": 0.5}]


def spec(**settings):
    return RLSpec(steps=1, algorithm=GRPO(group_size=2, groups_per_step=4), **settings)


def test_reports_nothing_for_one_environment():
    job = spec(environment=EnvironmentRef(id="easy"))
    played = [(one, result_of(one, one_turn_episode(1.0))) for one in step_requests("job-1", job, 1)]
    assert per_environment(job, played) == {}


def test_gives_each_environment_figures_of_its_own():
    job = spec(environments=SEVERAL)
    played = []
    for request in step_requests("job-1", job, 1):
        easy = request.environment.id == "easy"
        episode = one_turn_episode(1.0, won=1.0) if easy else one_turn_episode(0.25)
        played.append((request, result_of(request, episode)))
    found = per_environment(job, played)
    assert found["environment/easy/reward_mean"] == 1.0
    assert found["environment/hard/reward_mean"] == 0.25
    assert found["environment/easy/episodes"] + found["environment/hard/episodes"] == 8
    assert [name for name in found if name.endswith("won")] == ["environment/easy/env/won"]


def test_excludes_what_failed_from_rewards():
    job = spec(environments=SEVERAL)
    played = [
        (one, result_of(one, one_turn_episode(0.0, StopReason.ENVIRONMENT_ERROR)))
        for one in step_requests("job-1", job, 1)
    ]
    found = per_environment(job, played)
    assert not any(name.endswith("reward_mean") for name in found)
    assert found["environment/easy/failed_episodes"] == found["environment/easy/episodes"]


def test_reports_no_episodes_of_unplayed_environment():
    found = per_environment(spec(environments=SEVERAL), [])
    assert found["environment/easy/episodes"] == 0.0
