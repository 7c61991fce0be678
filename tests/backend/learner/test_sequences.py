import dataclasses
import math

import numpy as np
import pytest

from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import policy_loss
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.parts import FullParameters, LoRA

PENALIZED = policy_loss(kl_coefficient=0.3, aggregation="constant", constant_tokens=10)


@pytest.fixture
def ready(learner, batch):
    """A trained policy, and a batch with reference logprobs and sampling logprobs near its own."""
    return prepared(learner, batch)


def prepared(learner, batch):
    learner.create_policy("p", FullParameters(), seed=3)
    learner.forward_backward("p", batch, policy_loss())
    learner.optim_step("p", learning_rate=5e-3)
    reference, own = learner.logprobs(None, batch), learner.logprobs("p", batch)
    rng, sequences = np.random.default_rng(0), []
    for sequence, ref, now in zip(batch, reference, own, strict=True):
        sampling = iter((now + rng.normal(0, 0.3, len(now))).tolist())
        sequences.append(
            dataclasses.replace(
                sequence,
                sampling_logprobs=[next(sampling) if m else None for m in sequence.loss_mask],
                reference_logprobs=ref,
            )
        )
    return learner, sequences


def test_requires_optional_numbers_of_every_sequence_in_right_number(ready):
    learner, batch = ready
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "reference_logprobs"):
        learner.forward_backward(
            "p", [batch[0], dataclasses.replace(batch[1], reference_logprobs=None)], policy_loss()
        )
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "reference_logprobs"):
        dataclasses.replace(batch[0], reference_logprobs=[0.0])
    without = [dataclasses.replace(s, reference_logprobs=None) for s in batch]
    with pytest.raises(InvalidRequestError) as caught:
        learner.forward_backward("p", without, PENALIZED)
    assert caught.value.field == "reference_logprobs"


ADAPTERS = [LoRA(rank=4, alpha=12.0), FullParameters()]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"loss_mask": [True, False, True]}, "loss_mask"),
        ({"sampling_logprobs": [None, None]}, "sampling_logprobs"),
        ({"sampling_logprobs": [None, None, None]}, "sampling_logprobs"),
        ({"sampling_logprobs": [None, None, math.inf]}, "sampling_logprobs"),
        ({"token_ids": [1, 2, 61]}, "token_ids"),
        ({"token_ids": [1, -2, 3]}, "token_ids"),
        (
            {k: [v] * 256 + [w] for k, v, w in (("token_ids", 1, 1), ("loss_mask", False, True))}
            | {"sampling_logprobs": [None] * 256 + [-1.0]},
            "token_ids",
        ),
        ({"advantage": math.nan}, "advantage"),
        ({"advantage": [1.0]}, "advantage"),
        ({"temperature": 0.0}, "temperature"),
        ({"loss_mask": [False, False, False]}, "loss_mask"),
    ],
)
def test_rejects_sequence_that_cannot_be_learned_from_by_field(learner, change, field):
    learner.create_policy("p", ADAPTERS[0], seed=1)
    good = {
        "token_ids": [1, 2, 3],
        "loss_mask": [False, False, True],
        "sampling_logprobs": [None, None, -1.0],
        "advantage": 1.0,
    }
    learner.forward_backward("p", [TrainSequence(**good)], policy_loss())
    with pytest.raises(InvalidRequestError) as caught:
        learner.forward_backward("p", [TrainSequence(**good | change)], policy_loss())
    assert caught.value.field == field
