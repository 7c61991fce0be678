import torch

from backend.learner.learner import Learner
from backend.learner.token_loss import policy_loss
from tinkergym.schema.jobs.parts import LoRA


def gradients(learner, policy_id, batch, loss=None, **kwargs):
    """The gradient that waits, read off what one step of plain weight difference would be."""
    learner.forward_backward(policy_id, batch, loss or policy_loss(), **kwargs)
    return pending(learner, policy_id)


def pending(learner, policy_id):
    entry = learner._policies[policy_id]
    found = {name: p.grad.clone() for name, p in entry.policy.parameters.items()}
    entry.optimizer.clear()
    return found


def test_lets_model_write_into_what_adapted_layer_returned(model_dir, batch):
    """As Gemma 3n does."""

    class Writing(torch.nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, states):
            out = self.layer(states)
            out *= 2
            return out

    learner = Learner(model_dir)
    learner.create_policy("p", LoRA(rank=2), seed=0)
    layers = learner._base.lm.decoder.layers
    layers[0].mlp.down_proj = Writing(layers[0].mlp.down_proj)
    found = gradients(learner, "p", batch)
    assert all(bool(gradient.isfinite().all()) for gradient in found.values())
