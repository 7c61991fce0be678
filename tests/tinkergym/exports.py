"""A policy that was trained, to be exported."""

import dataclasses
from pathlib import Path

import pytest
import torch

from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import policy_loss
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.schema.jobs.parts import LoRA

NANO = PACKAGED_MODELS["nano"]


LORA = LoRA(rank=4, alpha=12.0)


SEQUENCE = TrainSequence(
    token_ids=[65, 66, 67, 68, 69, 70, 71],
    loss_mask=[False, False, False, True, True, True, True],
    sampling_logprobs=[None, None, None, -1.0, -1.0, -1.0, -1.0],
    advantage=1.0,
)


@dataclasses.dataclass(frozen=True)
class Learned:
    """A policy that was trained for a moment, and its checkpoint's files."""

    learner: Learner
    sha256: str
    files: dict[str, bytes]

    def logprobs(self):
        return self.learner.logprobs("p", [SEQUENCE])[0]


def learn(adapter, dtype, folder):
    learner = Learner(NANO, dtype=dtype)
    learner.create_policy("p", adapter, seed=1, value_head=True)  # which is no part of an export
    for _ in range(25):  # until the answer is likely: float32 knows logprobs near 0 to 1e-7
        known = [None] * 3 + learner.logprobs("p", [SEQUENCE])[0].tolist()
        sequence = dataclasses.replace(SEQUENCE, sampling_logprobs=known)
        learner.forward_backward("p", [sequence], policy_loss())
        learner.optim_step("p", learning_rate=1e-2)
    manifest = learner.save("p", folder, step=2, policy_version=2)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files.keys() >= {"optimizer.safetensors", "value_head.safetensors"}
    learned = Learned(learner, manifest.files[manifest.weights_file].sha256, files)
    assert learned.logprobs().min() > -3.0
    return learned


class Trained:
    """A scripted service whose one job has a real checkpoint, and what made it."""

    def __init__(self, service, learned, connect):
        self.service, self.logprobs = service, learned.logprobs
        service.jobs.files = dict(learned.files)
        self.client = connect(service.url, service.api_key)
        self.job = self.client.train("board/TicTacToeVs-v0", steps=2, rollout="server")
        self.folder = Path(self.job.checkpoints()[-1].path)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Train each kind of policy once: `learned(adapter, dtype)`."""
    kept = {}

    def once(adapter=LORA, dtype=torch.float32):
        if (adapter, dtype) not in kept:
            kept[adapter, dtype] = learn(adapter, dtype, tmp_path_factory.mktemp("learned") / "checkpoint")
        return kept[adapter, dtype]

    return once
