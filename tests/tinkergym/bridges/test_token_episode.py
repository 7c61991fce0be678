import pytest

from tinkergym.errors import InvalidRewardError

pytest.importorskip(
    "tinker_cookbook", reason="pip install --no-deps tinker-cookbook (docs/guides/bridges.md)"
)


def repeat(prompt):
    return prompt.rsplit("say ", 1)[1].split("<")[0]


def test_keeps_sampled_tokens_as_they_were_sampled(rollout):
    group, policy, _ = rollout(repeat, group_size=1)
    first, second, third = policy.prompts
    for before, sampled, after in ((first, policy.sampled[0], second), (second, policy.sampled[1], third)):
        assert after[: len(before) + len(sampled)] == before + sampled
    # One sequence per episode, not one per turn: nothing was tokenised again.
    from tinker_cookbook.rl.data_processing import trajectory_to_data

    assert len(trajectory_to_data(group.trajectories_G[0], 1.0)) == 1


def test_fails_rollout_of_failing_environment_instead_of_paying_0(rollout):
    with pytest.raises(RuntimeError, match="broken"):
        rollout(lambda prompt: "fail", group_size=1)


def test_fails_rollout_whose_reward_is_no_number(rollout):
    with pytest.raises(InvalidRewardError):
        rollout(lambda prompt: "nan", group_size=1)


def test_ends_episode_whose_first_prompt_does_not_fit(rollout):
    group, policy, _ = rollout(repeat, group_size=2, context_length=5)
    assert policy.sampled == []
    assert [trajectory.stop_reason for trajectory in group.trajectories_G] == ["context_overflow"] * 2


def test_ends_by_name_an_episode_that_outgrows_the_context(rollout):
    _, policy, _ = rollout(repeat, group_size=1)
    length = len(policy.prompts[1])
    group, policy, _ = rollout(repeat, group_size=1, context_length=length)
    assert group.trajectories_G[0].stop_reason == "context_overflow"
    assert len(policy.sampled) == 1
