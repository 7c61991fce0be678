from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backend.episodes.episode_requests import environment_seed, sampling_seed, step_requests
from tinkergym.algorithms import GRPO
from tinkergym.schema.jobs.parts import EnvironmentRef, WeightedEnvironment
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.trajectory.trajectory import ONLY_AGENT


def spec(seed: int = 0) -> RLSpec:
    algorithm = GRPO(group_size=3, groups_per_step=2)
    return RLSpec(environment=EnvironmentRef(id="bandit/Bandit-v0"), steps=3, seed=seed, algorithm=algorithm)


def test_makes_same_requests_of_the_same_job_and_step():
    assert step_requests("job-1", spec(7), 2) == step_requests("job-1", spec(7), 2)


def test_shares_only_environment_seed_within_a_group():
    requests = step_requests("job-1", spec(), 1) + step_requests("job-1", spec(), 2)
    seeds = {(request.step, request.group): request.seed for request in requests}
    assert all(request.seed == seeds[request.step, request.group] for request in requests)
    assert len(set(seeds.values())) == 4
    assert len({request.seats[ONLY_AGENT].sampling_seed for request in requests}) == len(requests)


def test_samples_step_by_the_version_that_the_previous_one_made():
    assert {request.seats[ONLY_AGENT].policy_version for request in step_requests("job-1", spec(), 3)} == {2}


def test_makes_other_episodes_by_another_job_seed():
    mine, other = step_requests("job-1", spec(1), 1), step_requests("job-1", spec(2), 1)
    assert {request.seed for request in mine}.isdisjoint(request.seed for request in other)


@given(seed=st.integers(0, 2**63 - 1), step=st.integers(1, 10**6), group=st.integers(0, 10**4))
def test_keeps_seeds_within_their_ranges(seed, step, group):
    assert 0 <= environment_seed(seed, step, group) < 2**31
    assert 0 <= sampling_seed(seed, step, group, 0) < 2**63


def test_tells_workers_which_data_the_job_recorded():
    both = [WeightedEnvironment(id="a/B-v0", kwargs={"split": split}, weight=1) for split in ("x", "y")]
    hashes = {f"a/B-v0[split={split}]": split_hash * 64 for split, split_hash in (("x", "1"), ("y", "2"))}
    one = RLSpec(environment=both[0].ref, environments=both, steps=4, environment_data=hashes)
    sent = {
        (request.environment.kwargs["split"], request.data_sha256)
        for step in range(4)
        for request in step_requests("job", one, step)
    }
    assert sent == {("x", "1" * 64), ("y", "2" * 64)}
