import numpy as np

from backend.compute.weights import weights_sha256
from tinkergym.schema.jobs.parts import FullParameters, LoRA

ADAPTERS = [LoRA(rank=4, alpha=12.0), FullParameters()]


def test_answers_by_untrained_adapter_as_the_base_model(learner, batch):
    learner.create_policy("p", ADAPTERS[0], seed=1)
    for found, base in zip(learner.logprobs("p", batch), learner.logprobs(None, batch), strict=True):
        np.testing.assert_array_equal(found, base)


def test_gives_another_adapter_by_another_seed(learner):
    for seed in (1, 2):
        learner.create_policy(f"p{seed}", ADAPTERS[0], seed=seed)
    assert weights_sha256(learner.weights("p1")) != weights_sha256(learner.weights("p2"))
