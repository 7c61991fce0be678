"""Two processes that train a model that sees, against one learner in this process."""

import pytest

from backend.learner.learner import Learner
from backend.learner.parallel.data_parallel import DataParallelLearner
from backend.learner.token_loss import policy_loss
from tests.backend.learner.test_images import sequence
from tests.backend.vlm import NANO_VL, Pictures
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.parts import FullParameters, LoRA


@pytest.mark.service
@pytest.mark.full("starts two ranks")
def test_trains_ranks_on_images_as_one_without_dividing_vision_models():
    batch = [sequence(1), sequence(2), sequence(1, 2), sequence(3, answer=[30, 2], advantage=-1.0)]
    alone = Learner(NANO_VL, images=Pictures())
    with DataParallelLearner(NANO_VL, ranks=2, divide_from=1, images=Pictures()) as ranks:
        for one in (alone, ranks):
            one.create_policy("p", LoRA(rank=4, vision=True), seed=0)
            for _ in range(3):
                one.forward_backward("p", batch, policy_loss(loss="reinforce"))
                one.optim_step("p", learning_rate=1e-2)
        for found, expected in zip(ranks.logprobs("p", batch), alone.logprobs("p", batch), strict=True):
            assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-4)
        with pytest.raises(InvalidRequestError) as caught:
            ranks.create_policy("whole", FullParameters(), seed=0)
        assert caught.value.field == "adapter"
        assert ranks.policy_ids == ["p"]
