"""Our environments in tinker-cookbook's own rollouts, with its own tokenizers and its own accounting."""

import asyncio
import pickle
from pathlib import Path

import pytest

pytest.importorskip(
    "tinker_cookbook", reason="pip install --no-deps tinker-cookbook (docs/guides/bridges.md)"
)

import backend
import tinkergym as tg
from tinkergym.errors import InvalidRewardError
from tinkergym.registration.environments import make

NANO = str(Path(backend.__file__).parent / "models" / "nano")


class Count(tg.TextEnv):
    """Answer with the number shown, three times."""

    system_prompt = "Repeat the number."

    def start(self, options):
        self.left, self.closed = 3, False
        return self.shown()

    def shown(self):
        self.number = int(self.np_random.integers(100))
        return f"say {self.number}"

    def reply(self, action):
        if action == "fail":
            raise RuntimeError("broken on purpose")
        self.left -= 1
        right = float(action == str(self.number))
        return self.shown(), right, self.left == 0, {"metrics": {"right": right}}


@pytest.fixture
def rollout():
    """Play a group with answers that are a function of the prompt's text; return group and prompts."""
    from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
    from tinker_cookbook.rl.rollouts import do_group_rollout
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    from tinkergym.bridges.tinker_cookbook import GymDatasetBuilder

    tg.register("tests/Count-v0", Count)
    tokenizer = get_tokenizer(NANO)

    class Scripted(TokenCompleter):
        def __init__(self, answer):
            self.answer, self.prompts, self.sampled = answer, [], []

        async def __call__(self, model_input, stop):
            assert stop == [tokenizer.eos_token_id]
            ids = model_input.to_ints()
            answer = tokenizer.encode(self.answer(tokenizer.decode(ids)), add_special_tokens=False) + stop
            self.prompts.append(ids)
            self.sampled.append(answer)
            return TokensWithLogprobs(tokens=answer, maybe_logprobs=[-0.5] * len(answer), stop_reason="stop")

    def play(answer, **settings):
        builder = GymDatasetBuilder(
            env_id="tests/Count-v0", model_name=NANO, batches=3, batch_size=2, **settings
        )
        dataset, _ = asyncio.run(builder())
        group = pickle.loads(pickle.dumps(dataset.get_batch(1)[0]))
        policy = Scripted(answer)
        return asyncio.run(do_group_rollout(group, policy)), policy, dataset

    return play


def repeat(prompt):
    return prompt.rsplit("say ", 1)[1].split("<")[0]


def test_a_group_earns_what_the_environment_pays(rollout):
    group, _, dataset = rollout(repeat, group_size=3)
    assert group.get_total_rewards() == [3.0, 3.0, 3.0]
    assert len(dataset) == 3
    assert [transition.metrics["right"] for transition in group.trajectories_G[0].transitions] == [1.0] * 3
    assert group.trajectories_G[0].stop_reason == "completed"


def test_wrong_answers_earn_less_and_long_episodes_are_cut_off_by_name(rollout):
    group, *_ = rollout(lambda prompt: "no", group_size=1, max_turns=2)
    assert group.get_total_rewards() == [0.0]
    assert group.trajectories_G[0].stop_reason == "max_turns"


def test_the_members_of_a_group_start_equal_and_groups_differ(rollout):
    group, _, dataset = rollout(repeat, group_size=2)
    first, second = (trajectory.transitions[0].ob.to_ints() for trajectory in group.trajectories_G)
    assert first == second
    assert [member.seed for index in range(3) for member in dataset.get_batch(index)] == list(range(6))


def test_sampled_tokens_stay_as_they_were_sampled(rollout):
    group, policy, _ = rollout(repeat, group_size=1)
    first, second, third = policy.prompts
    for before, sampled, after in ((first, policy.sampled[0], second), (second, policy.sampled[1], third)):
        assert after[: len(before) + len(sampled)] == before + sampled
    # One sequence per episode, not one per turn: nothing was tokenised again.
    from tinker_cookbook.rl.data_processing import trajectory_to_data

    assert len(trajectory_to_data(group.trajectories_G[0], 1.0)) == 1


def test_the_first_prompt_is_the_chat_template_with_the_environments_system_prompt(rollout):
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    _, policy, dataset = rollout(repeat, group_size=1)
    observation, _ = make("tests/Count-v0").reset(seed=dataset.get_batch(1)[0].seed)
    messages = [{"role": "system", "content": Count.system_prompt}, {"role": "user", "content": observation}]
    expected = get_tokenizer(NANO).apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert get_tokenizer(NANO).decode(policy.prompts[0]) == expected


def test_a_failing_environment_is_a_failed_rollout_not_a_reward_of_0(rollout):
    with pytest.raises(RuntimeError, match="broken on purpose"):
        rollout(lambda prompt: "fail", group_size=1)


def test_a_reward_that_is_no_number_is_a_failed_rollout(rollout, monkeypatch):
    monkeypatch.setattr(Count, "reply", lambda self, action: ("", float("nan"), True, {}))
    with pytest.raises(InvalidRewardError):
        rollout(repeat, group_size=1)


def test_a_first_prompt_that_does_not_fit_ends_the_episode_by_name_before_anything_is_sampled(rollout):
    group, policy, _ = rollout(repeat, group_size=2, context_length=5)
    assert policy.sampled == []
    assert [trajectory.stop_reason for trajectory in group.trajectories_G] == ["context_overflow"] * 2


def test_an_episode_that_outgrows_the_context_ends_by_name(rollout):
    _, policy, _ = rollout(repeat, group_size=1)
    length = len(policy.prompts[1])
    group, policy, _ = rollout(repeat, group_size=1, context_length=length)
    assert group.trajectories_G[0].stop_reason == "context_overflow"
    assert len(policy.sampled) == 1


def test_environments_are_closed(rollout, monkeypatch):
    closed = []
    monkeypatch.setattr(Count, "close", lambda self: closed.append(1))
    rollout(repeat, group_size=3)
    assert len(closed) == 3


def test_the_bridge_is_no_longer_than_it_must_be():
    from tinkergym.bridges import tinker_cookbook, trl

    for module in (tinker_cookbook, trl):
        assert len(Path(module.__file__).read_text().splitlines()) <= 100
