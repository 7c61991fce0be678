import json
from dataclasses import replace

import numpy as np
import pytest

from tinkergym.advantages import group_advantages
from tinkergym.algorithms import GRPO, PPO, RLOO, ReinforcePlusPlus, RunningBaseline
from tinkergym.core import SingleTurnEnv, TextEnv
from tinkergym.datasets.stored_episodes import StoredEpisodes, stored_episodes
from tinkergym.errors import InvalidRequestError, InvalidRewardError
from tinkergym.evaluation.rescore import rescore
from tinkergym.rubrics import Rubric
from tinkergym.schema.jobs.distillation import DistillationSpec
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import SharedWith, Train
from tinkergym.tasks import SequenceTasks
from tinkergym.testing.made_up_episodes import stored_record

ALGORITHMS = [
    GRPO(group_size=2, groups_per_step=2),
    GRPO(group_size=2, groups_per_step=2, normalize="std"),
    RLOO(group_size=2, groups_per_step=2),
    ReinforcePlusPlus(group_size=2, groups_per_step=2),
]


class Question(SingleTurnEnv):
    def ask(self, options):
        return "question"

    def score(self, answer):
        return float(answer.split()[1]), {"asked": 1.0}


class Other(Question):
    def ask(self, options):
        return "another question"


class Game(TextEnv):
    def start(self, options):
        return "question"

    def reply(self, action):
        return "", 1.0, True


def spec(algorithm=ALGORITHMS[0]):
    return RLSpec(environment=EnvironmentRef(id="own/Env-v0"), steps=2, algorithm=algorithm)


def episodes(*rewards, tasks=False):
    records = [stored_record(n, reward, task_index=n if tasks else None) for n, reward in enumerate(rewards)]
    return stored_episodes(spec(), records, origin="job-1")


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda one: f"{one.name}-{one.comparison}")
def test_computes_advantages_as_the_service_does(algorithm):
    rewards = [0.0, 1.0, 0.25, 0.5]
    found = rescore(spec(algorithm), episodes(*rewards), lambda episode: 2 * episode.reward)
    baseline, normalize = algorithm.comparison
    for which, factor in (("advantage_before", 1), ("advantage_after", 2)):
        wanted = group_advantages(
            [factor * one for one in rewards],
            [0, 0, 1, 1],
            [True] * 4,
            baseline=baseline,
            normalize=normalize,
        )
        np.testing.assert_allclose([getattr(one, which) for one in found], wanted.values, atol=1e-9)
    assert found.summary["groups_reranked"] == 0


def test_compares_no_rewards_across_environments_and_keeps_seats_algorithms():
    places = [EnvironmentRef(id=f"own/{name}-v0") for name in "AB"]
    found = [
        replace(
            one, environment=places[one.group], trajectory=one.trajectory.model_copy(update={"agent": "x"})
        )
        for one in episodes(0.0, 1.0, 100.0, 104.0)
    ]
    own = ReinforcePlusPlus(group_size=2, groups_per_step=2)
    seated = spec().model_copy(update={"agents": {"x": Train(algorithm=own), "o": SharedWith(agent="x")}})
    report = rescore(seated, StoredEpisodes(found), lambda episode: episode.reward)
    wanted = group_advantages(
        [0.0, 1.0, 100.0, 104.0],
        [0, 0, 1, 1],
        [True] * 4,
        baseline="batch",
        normalize="batch_std",
        strata=[0, 0, 1, 1],
    )
    np.testing.assert_allclose([one.advantage_before for one in report], wanted.values, atol=1e-9)


def test_compares_seats_of_one_policy_separately():
    found = [
        replace(one, trajectory=one.trajectory.model_copy(update={"agent": "xxoo"[one.index]}))
        for one in episodes(0.0, 1.0, 10.0, 13.0)
    ]
    own = GRPO(group_size=2, groups_per_step=2, baseline="batch")
    job = spec(own).model_copy(update={"agents": {"x": Train(), "o": SharedWith(agent="x")}})
    report = rescore(job, StoredEpisodes(found), lambda episode: 0.0)
    assert [one.advantage_before for one in report] == [-0.5, 0.5, -1.5, 1.5]


@pytest.mark.parametrize(
    ("algorithm", "turns", "word"),
    [
        (RunningBaseline(), 1, "RunningBaseline"),
        (PPO(), 1, "PPO"),
        (GRPO(credit="turn"), 2, "credit"),
        (GRPO(overlong_tokens=2), 1, "overlong_tokens"),
    ],
)
def test_says_why_an_algorithm_has_no_advantages(algorithm, turns, word):
    records = [stored_record(n, reward, turns=turns) for n, reward in enumerate((0.0, 1.0))]
    job = spec(algorithm.model_copy(update={"group_size": 2, "groups_per_step": 2}))
    found = rescore(job, stored_episodes(job, records, origin="job-1"), lambda episode: 1 - episode.reward)
    assert [(one.rank_before, one.rank_after) for one in found] == [(2, 1), (1, 2)]
    assert {one.advantage_before for one in found} == {one.advantage_after for one in found} == {None}
    assert word in found.no_advantages
    assert word in str(found)
    assert "advantages_turned" not in found.summary


def test_takes_advantages_of_distillation_job_from_its_teacher():
    job = DistillationSpec(environment=EnvironmentRef(id="own/Env-v0"), teacher="nano", steps=2)
    found = rescore(job, stored_episodes(job, [stored_record(0, 1.0)], origin="job-1"), lambda episode: 0.0)
    assert "teacher" in found.no_advantages


class Judged(Question):
    def __init__(self, judge=None, factor=1.0):
        super().__init__()
        self.judge, self.factor = dict(judge or {}), factor

    def score(self, answer):
        assert self.judge == {"url": "https://judge.example/v1", "model": "small"}
        return self.factor


def test_passes_class_each_episodes_arguments_without_the_services_keys():
    judge = {"url": "https://judge.example/v1", "model": "small", "api_key": "stored:0123"}
    found = [
        replace(
            one,
            environment=EnvironmentRef(id="own/Env-v0", kwargs={"judge": judge, "factor": one.group + 1.0}),
        )
        for one in episodes(0.0, 1.0, 0.0, 1.0)
    ]
    assert [one.after for one in rescore(spec(), StoredEpisodes(found), Judged)] == [1.0, 1.0, 2.0, 2.0]
    mixed = [replace(found[0], environment=EnvironmentRef(id="own/Other-v0")), *found[1:]]
    with pytest.raises(InvalidRequestError) as caught:
        rescore(spec(), StoredEpisodes(mixed), Judged)
    assert caught.value.field == "reward"


def test_changes_rankings_by_class_with_another_score():
    found = rescore(spec(), episodes(1.0, 0.0, 1.0, None), Question)
    assert [one.after for one in found] == [0.0, 1.0, 2.0]
    assert [(one.rank_before, one.rank_after) for one in found][:2] == [(1, 2), (2, 1)]
    assert (found.summary["groups_reranked"], found.summary["advantages_turned"]) == (1, 2)
    assert found.summary["groups_with_another_best"] == 1
    assert json.loads(found.to_json())["episodes"][0]["metrics"] == {"asked": 1.0}
    rows = found.episodes.to_sft(best_of=2)
    assert [row["messages"][-1]["content"] for row in rows] == ["answer 1", "answer 2"]


@pytest.mark.parametrize("kind", [Game, Other])
def test_rejects_rewards_out_of_state_and_other_questions(kind):
    with pytest.raises(InvalidRequestError):
        rescore(spec(), episodes(1.0, 0.0), kind)


def test_shows_rubric_the_tasks_row_and_all_group_answers():
    rubric = Rubric()

    @rubric.term
    def right(answer, gold):
        return answer == gold

    @rubric.term(weight=0.5)
    async def unlike_the_others(group_answers, place):
        return len(set(group_answers)) / len(group_answers) + place

    rows = SequenceTasks([{"gold": "answer 0"}, {"gold": "no"}])
    found = rescore(spec(), episodes(0.0, 1.0, tasks=True), rubric, tasks=rows)
    assert [one.after for one in found] == [1.5, 1.0]
    with pytest.raises(InvalidRequestError) as caught:
        rescore(spec(), episodes(0.0, 1.0), rubric)
    assert caught.value.field == "reward"


def test_counts_what_cannot_be_scored_instead_of_0():
    def broken(episode):
        if episode.index:
            raise InvalidRewardError("the judge is away")
        return 1.0

    first, second = rescore(spec(), episodes(0.0, 1.0), broken)
    assert (first.after, second.after) == (1.0, None)
    assert "away" in second.error


def test_gives_equal_rewards_the_best_rank_they_share():
    job = spec(GRPO(group_size=4, groups_per_step=1))
    records = [stored_record(n, reward) for n, reward in enumerate((1.0, 1.0, 0.0, 2.0))]
    found = rescore(job, stored_episodes(job, records, origin="job-1"), lambda one: float(one.index == 2))
    assert [(one.rank_before, one.rank_after) for one in found] == [(2, 2), (2, 2), (4, 1), (1, 2)]


def test_compares_the_episodes_of_each_step_apart():
    # The second step earns more throughout: its mean must not enter the first step's.
    records = [stored_record(n, reward, step=1) for n, reward in enumerate((0.0, 1.0, 2.0, 5.0))]
    records += [stored_record(n, reward, step=2) for n, reward in enumerate((100.0, 100.0, 104.0, 108.0))]
    algorithm = ReinforcePlusPlus(group_size=2, groups_per_step=2)
    job = spec(algorithm)
    found = rescore(job, stored_episodes(job, records, origin="job-1"), lambda one: one.reward**2)
    for which, power in (("advantage_before", 1), ("advantage_after", 2)):
        for step, rewards in ((1, (0.0, 1.0, 2.0, 5.0)), (2, (100.0, 100.0, 104.0, 108.0))):
            values = np.array(rewards) ** power
            wanted = (values - values.mean()) / values.std(ddof=1)
            own = [getattr(one, which) for one in found if one.episode.step == step]
            np.testing.assert_allclose(own, wanted, atol=1e-5)


def test_pays_new_reward_also_to_episode_that_earned_before():
    job = spec()
    early, plain = (
        replace(one, trajectory=one.trajectory.model_copy(update={"early_reward": early}))
        for one, early in zip(
            stored_episodes(job, [stored_record(n, 1.0, turns=3) for n in range(2)], origin="job-1"),
            (0.75, 0.0),
            strict=True,
        )
    )
    first = early.trajectory.turns[0].model_copy(update={"reward": 0.5})
    turns = [first, *early.trajectory.turns[1:]]
    early = replace(early, trajectory=early.trajectory.model_copy(update={"turns": turns}))
    found = rescore(job, StoredEpisodes([early, plain]), lambda one: 4.0 + one.index)
    assert [one.before for one in found] == [2.25, 1.0]
    assert [one.reward for one in found.episodes] == pytest.approx([4.0, 5.0])
    # What was earned on the way stays where it was.
    assert found.episodes[0].trajectory.turns[0].reward == 0.5
    assert found.episodes[0].trajectory.early_reward == 0.75


def test_shows_a_rubric_the_whole_group_and_the_members_place():
    seen = {}
    rubric = Rubric()

    @rubric.term
    def noted(answer, answers, group_answers, place, observation, reward):
        seen[answer] = (list(answers), list(group_answers), place, observation, reward)
        return 0.0

    job = spec(GRPO(group_size=3, groups_per_step=2))
    records = [stored_record(n, float(n)) for n in range(6)]
    rescore(job, stored_episodes(job, records, origin="job-1"), rubric)
    groups = [["answer 0", "answer 1", "answer 2"], ["answer 3", "answer 4", "answer 5"]]
    assert seen == {
        f"answer {n}": ([f"answer {n}"], groups[n // 3], n % 3, "question", float(n)) for n in range(6)
    }


def keeping(**settings):
    return spec(RLOO(group_size=2, groups_per_step=2)).model_copy(update={"on_failure": "keep"} | settings)


@pytest.mark.parametrize("visible", [True, False])
def test_names_kept_failures_as_missing(visible):
    found = [*episodes(0.0, 1.0, 0.5, None)]
    some = StoredEpisodes(found if visible else found[:3])
    report = rescore(keeping(), some, lambda one: 1.0)
    assert "on_failure" in report.no_advantages
    assert {one.advantage_before for one in report} == {None}
    # Without 'keep', a failed episode is in no baseline.
    assert not rescore(keeping(on_failure="drop"), some, lambda one: 1.0).no_advantages


def test_misses_nothing_where_no_kept_episode_failed():
    report = rescore(keeping(), episodes(0.0, 1.0, 0.5, 0.75), lambda one: 1.0)
    assert report.no_advantages == ""
    assert [one.advantage_before for one in report] == [-1.0, 1.0, -0.25, 0.25]
    # What failed before the first completion was not kept either.
    *others, last = episodes(0.0, 1.0, 0.5, None)
    last = replace(last, trajectory=last.trajectory.model_copy(update={"turns": [], "segments": []}))
    assert not rescore(keeping(), StoredEpisodes([*others, last]), lambda one: 1.0).no_advantages


def test_names_groups_that_dynamic_sampling_replaced_as_missing():
    replaced = {"group_size": 2, "groups_per_step": 2, "dynamic_sampling_rounds": 2}
    whole = rescore(
        spec(ReinforcePlusPlus(baseline="group", **replaced)), episodes(0.0, 1.0), lambda one: 1.0
    )
    assert "dynamic_sampling_rounds" in whole.no_advantages
    # Replaced groups have zero variance, so they change no other group's advantages.
    own = rescore(spec(GRPO(**replaced)), episodes(0.0, 1.0), lambda one: 1.0)
    assert own.no_advantages == ""


def test_keeps_reward_of_agent_that_never_acted():
    """It has no answer to score, but its game was won or lost; siblings are compared with it."""
    first, unmoved, *others = episodes(0.0, 1.0, 0.25, 0.5)
    record = unmoved.trajectory.model_copy(update={"turns": [], "segments": [], "early_reward": 1.0})
    played = StoredEpisodes([first, replace(unmoved, trajectory=record), *others])
    rubric = Rubric()

    @rubric.term(weight=3.0)
    def own(answer, group_answers, place):
        return answer == group_answers[place]

    found = rescore(spec(), played, rubric)
    assert [(one.before, one.after) for one in found][:2] == [(0.0, 3.0), (1.0, 1.0)]
    assert [one.advantage_after for one in found][:2] == [1.0, -1.0]
    assert [one.reward for one in found.episodes][:2] == [3.0, 1.0]
