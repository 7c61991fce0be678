from types import SimpleNamespace

import numpy as np

from backend.jobs.own_loop_parity import PublishCheck
from backend.learner.sequences import TrainSequence
from tinkergym.trajectory.content_parts import ImageSpan

IMAGE = ImageSpan(sha256="0" * 64, start=1, end=3)


class Policy:
    """Remembers which sequences were compared."""

    def __init__(self):
        self.compared = []
        self.take_facts = list

    def note_agreement(self, version, metrics, sequences, logprobs, *, allowed):
        self.compared.append((version, metrics["parity_max"], sequences))


def test_compares_batch_with_the_engines_logprobs_with_its_images():
    policy = Policy()
    context = SimpleNamespace(
        policy=policy,
        parity_threshold=1e-3,
        lease=None,
        store=SimpleNamespace(add_facts=lambda lease, facts: None),
    )
    check = PublishCheck(context)
    check.published(3)
    batch = TrainSequence(
        token_ids=[5, 9, 9, 6, 7],
        loss_mask=[False] * 4 + [True],
        sampling_logprobs=[None, None, None, -2.0, -1.0],
        images=[IMAGE],
    )
    check.learned([batch], [np.float32([-1.0])], sampled=True)
    ((version, difference, (compared,)),) = policy.compared
    assert (version, difference) == (3, 0.0)
    assert compared.images == [IMAGE]
    assert compared.sampling_logprobs == [None] * 4 + [-1.0]
