import numpy as np
import pytest
import torch
from torch.nn import functional

from backend.compute.cpu.attention import attend
from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import policy_loss
from tests.backend.engines.conftest import NANO
from tinkergym.schema.jobs.parts import LoRA
from tinkergym.schema.sampling import SampleRequest


def test_attends_with_shared_keys_as_if_each_had_its_own():
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (
        torch.randn(2, heads, 5, 8, generator=generator, dtype=torch.float64) for heads in (4, 2, 2)
    )
    own = [one.repeat_interleave(2, dim=1) for one in (keys, values)]
    causal = torch.full((5, 5), float("-inf"), dtype=torch.float64).triu(1)
    expected = functional.scaled_dot_product_attention(queries, *own, attn_mask=causal, scale=0.3)
    for mask in (None, causal):
        found = attend(queries, keys, values, scale=0.3, mask=mask)
        torch.testing.assert_close(found, expected)


def kernels_round_as_is_known():
    """Whether torch attends to few queries and to whole sequences in one order on this processor."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(4, 4, 64, 32) for _ in range(3))
    whole = functional.scaled_dot_product_attention(query, key, value, is_causal=True)[:, :, 40]
    mask = torch.zeros(4, 48).masked_fill_(torch.arange(48) > 40, float("-inf"))
    few = functional.scaled_dot_product_attention(
        query[:, :, 40:41].repeat(1, 1, 4, 1), key[:, :, :48], value[:, :, :48], attn_mask=mask
    )
    return torch.equal(few[:, :, 0], whole)


@pytest.mark.skipif(not kernels_round_as_is_known(), reason="this processor's kernels round otherwise")
def test_agrees_to_the_bit_between_engine_and_learner_over_turns():
    learner, engine = Learner(NANO), TransformersEngine(NANO)
    learner.create_policy("p", LoRA(rank=8), seed=0)
    try:
        for version in range(3):
            engine.publish("p", version, learner.weights("p"))
            sequences = played(engine, version)
            learned = learner.forward_backward("p", sequences, policy_loss()).learner_logprobs
            for sequence, logprobs in zip(sequences, learned, strict=True):
                sampled = [p for p in sequence.sampling_logprobs if p is not None]
                np.testing.assert_array_equal(np.float32(sampled), logprobs)
            learner.optim_step("p", learning_rate=1e-2)
    finally:
        engine.close()


def played(engine, version):
    """Return games of three turns: a few sampled tokens, then a few that somebody else wrote.

    Those of a turn are asked for together, as many in each length: a row that is alone goes through a product
    of its own.
    """
    draw = np.random.default_rng(version)

    def written(most):
        return draw.integers(3, 800, size=int(draw.integers(1, most))).tolist()

    tokens = [written(60) for _ in range(12)]
    masks, logprobs = ([[value] * len(ids) for ids in tokens] for value in (False, None))
    for turn in range(3):
        requests = [
            SampleRequest(
                request_id=f"{version}-{number}-{turn}",
                session_id=f"{version}-{number}",
                policy="p",
                policy_version=version,
                prompt_ids=ids,
                max_tokens=1 + number % 4,
                temperature=1.0,
                seed=number,
            )
            for number, ids in enumerate(tokens)
        ]
        for number, answer in enumerate(engine.generate_together(requests)):
            reply = written(9)
            tokens[number] += [*answer.token_ids, *reply]
            masks[number] += [True] * len(answer.token_ids) + [False] * len(reply)
            logprobs[number] += [*answer.sampling_logprobs, *[None] * len(reply)]
    return [
        TrainSequence(token_ids=ids, loss_mask=mask, sampling_logprobs=own, advantage=1.0 - number % 3)
        for number, (ids, mask, own) in enumerate(zip(tokens, masks, logprobs, strict=True))
    ]
