"""Public reports about rewards, environments, batches and settings, replayed on this project."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

import tinkergym as tg
from backend.jobs.dataset_records import batch_numbers
from tests.public_reports.graded_environment import Graded, graded
from tests.public_reports.test_data_containers import SHOWS_CALLS, renderer
from tinkergym.advantages import group_advantages
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError
from tinkergym.messages import user
from tinkergym.rollout.executors import ProcessExecutor
from tinkergym.rollout.play_list import play
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.parsing import parse_spec
from tinkergym.testing import RandomTokenSampler
from tinkergym.testing.bundles import family_bundle


class Reused(tg.TextEnv):
    """Returns the same list of messages each time, changed."""

    def start(self, options):
        self.shown = [{"role": "user", "content": "turn 0"}]
        self.turn = 0
        return self.shown

    def reply(self, action):
        self.turn += 1
        self.shown[0]["content"] = f"turn {self.turn}"
        return self.shown, 0.0, self.turn == 3


def played(make, executor=None):
    model = Renderer.from_bundle(family_bundle("qwen"))
    plan = EpisodePlan(episode_id="e", seed=1, policy="p", environment=EnvironmentRef(id="x/X-v0"))
    sampler = RandomTokenSampler(model.vocab_size)
    (result,) = play([plan], sampler=sampler, renderer=model, make_env=make, executor=executor)
    return result.trajectories[0]


def test_names_way_out_for_scorer_with_alarm():
    """huggingface/trl #5281; verl-project/verl #5635."""
    one = played(graded)
    assert not one.completed
    assert "executor='process'" in one.error
    scored = played(graded, ProcessExecutor(1))
    assert (scored.completed, scored.episode_return) == (True, 1.0)


@pytest.mark.parametrize("score", [None, math.nan, math.inf, "1", [1.0, 2.0]], ids=repr)
def test_names_reward_that_is_no_number(score):
    """modelscope/ms-swift #8123; huggingface/trl #5775."""
    one = played(lambda ref: Graded([score]))
    assert (one.completed, one.stop_reason.value) == (False, "invalid_reward")


def test_leaves_no_advantage_of_a_group_undefined():
    """modelscope/ms-swift #8123: one None made all advantages NaN."""
    for returns in ([1.0, 1.0, math.nan], [0.0, 1.0, math.nan], [5.0, math.nan, math.nan]):
        completed = [math.isfinite(value) for value in returns]
        found = group_advantages(returns, [0, 0, 0], completed, normalize="std")
        assert np.isfinite(np.asarray(found.values)[completed]).all()


def test_renders_results_of_parallel_calls_together():
    """THUDM/slime #2263, #2264."""
    model = renderer(SHOWS_CALLS)
    results = [{"role": "tool", "content": name, "tool_call_id": name} for name in ("one", "two")]
    answer = model.encode_answer("x")
    shown = model.decode(model.delta(answer, results))
    whole = "<|im_start|>tool\none<|im_end|>\n<|im_start|>tool\ntwo<|im_end|>\n<|im_start|>assistant\n"
    assert shown.lstrip("\n") == whole


def test_begins_prompt_once_though_tokenizer_adds_token_too():
    """huggingface/trl #1400; OpenRLHF/OpenRLHF #393; sgl-project/sglang #888."""
    for family in ("llama", "gemma", "mistral"):
        bundle = family_bundle(family)
        begin, own = bundle.special_tokens["bos_token"], Tokenizer.from_str(bundle.tokenizer_json)
        own.post_processor = TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, own.token_to_id(begin))]
        )
        model = Renderer.from_bundle(bundle.model_copy(update={"tokenizer_json": own.to_str()}))
        assert model.decode(model.start([user("Hi")])).count(begin) == 1


def test_uses_every_record_of_data_equally_often():
    """rllm-org/rllm #870; NVIDIA-NeMo/Megatron-Bridge #4926: the tail of the data was never seen."""
    spec = parse_spec({"kind": "sft", "data": "0" * 64, "steps": 7, "batch_size": 3})
    seen = [number for step in range(1, 8) for number in batch_numbers(spec, 7, step)]
    assert sorted(seen) == sorted([*range(7)] * 3)


def test_keeps_what_environment_showed_before_it_changed_it():
    """Farama-Foundation/Gymnasium #1132, #1680, #1715."""
    one = played(lambda ref: Reused())
    assert [turn.observation for turn in one.turns] == ["turn 0", "turn 1", "turn 2"]


@pytest.mark.parametrize(
    "settings",
    [
        {"sampling": {"top_p": 0.9}},  # huggingface/trl #6789, #6945; modelscope/ms-swift #8442
        {"sampling": {"top_k": 5}},
        {"algorithm": {"name": "grpo", "group_size": 1}},  # modelscope/ms-swift #8123
    ],
)
def test_refuses_settings_that_would_train_wrongly(settings):
    """Sampling from another distribution than is trained on, and groups of one."""
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec({"kind": "rl", "environment": {"id": "a/B-v0"}, "steps": 1, **settings})
    assert caught.value.field
