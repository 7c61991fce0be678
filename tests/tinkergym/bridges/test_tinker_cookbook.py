"""Our environments in tinker-cookbook's own rollouts, with its own tokenizers and its own accounting."""

from pathlib import Path

import pytest

from tests.tinkergym.bridges.cookbook import NANO, Count
from tinkergym.registration.environments import make

pytest.importorskip(
    "tinker_cookbook", reason="pip install --no-deps tinker-cookbook (docs/guides/bridges.md)"
)


def repeat(prompt):
    return prompt.rsplit("say ", 1)[1].split("<")[0]


def test_earns_for_group_what_the_environment_pays(rollout):
    group, _, dataset = rollout(repeat, group_size=3)
    assert group.get_total_rewards() == [3.0, 3.0, 3.0]
    assert len(dataset) == 3
    assert [transition.metrics["right"] for transition in group.trajectories_G[0].transitions] == [1.0] * 3
    assert group.trajectories_G[0].stop_reason == "completed"


def test_pays_wrong_answers_less_and_cuts_long_episodes_by_name(rollout):
    group, *_ = rollout(lambda prompt: "no", group_size=1, max_turns=2)
    assert group.get_total_rewards() == [0.0]
    assert group.trajectories_G[0].stop_reason == "max_turns"


def test_starts_group_members_equal_and_groups_different(rollout):
    group, _, dataset = rollout(repeat, group_size=2)
    first, second = (trajectory.transitions[0].ob.to_ints() for trajectory in group.trajectories_G)
    assert first == second
    assert [member.seed for index in range(3) for member in dataset.get_batch(index)] == list(range(6))


def test_renders_first_prompt_by_template_with_environments_system_prompt(rollout):
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    _, policy, dataset = rollout(repeat, group_size=1)
    observation, _ = make("tests/Count-v0").reset(seed=dataset.get_batch(1)[0].seed)
    messages = [{"role": "system", "content": Count.system_prompt}, {"role": "user", "content": observation}]
    expected = get_tokenizer(NANO).apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert get_tokenizer(NANO).decode(policy.prompts[0]) == expected


def test_closes_environments(rollout, monkeypatch):
    closed = []
    monkeypatch.setattr(Count, "close", lambda self: closed.append(1))
    rollout(repeat, group_size=3)
    assert len(closed) == 3


def test_keeps_the_bridge_as_short_as_possible():
    from tinkergym.bridges import tinker_cookbook, trl

    for module in (tinker_cookbook, trl):
        assert len(Path(module.__file__).read_text().splitlines()) <= 100
