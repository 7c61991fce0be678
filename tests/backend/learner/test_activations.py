import pytest
from torch.autograd.graph import saved_tensors_hooks

from backend.learner import activations
from backend.learner.learner import Learner
from backend.learner.token_loss import policy_loss
from tests.backend.learner.tiny import _tiny, assert_close, trained
from tinkergym.schema.jobs.parts import FullParameters, LoRA

ADAPTERS = [LoRA(rank=4, alpha=12.0), FullParameters()]


KINDS = pytest.mark.parametrize("adapter", ADAPTERS, ids=["lora", "full"])


def gradients(learner, policy_id, batch, loss=None, **kwargs):
    """The gradient that waits, read off what one step of plain weight difference would be."""
    learner.forward_backward(policy_id, batch, loss or policy_loss(), **kwargs)
    return pending(learner, policy_id)


def pending(learner, policy_id):
    entry = learner._policies[policy_id]
    found = {name: p.grad.clone() for name, p in entry.policy.parameters.items()}
    entry.optimizer.clear()
    return found


def most_kept(learner, batch):
    """Bytes that a forward and backward pass over a batch keeps in between, at the most."""
    now, most = 0, 0

    def keep(tensor):
        nonlocal now, most
        now += tensor.nbytes
        most = max(most, now)
        return tensor

    def give(tensor):
        nonlocal now
        now -= tensor.nbytes
        return tensor

    with saved_tensors_hooks(keep, give):
        learner.forward_backward("p", batch, policy_loss())
    pending(learner, "p")
    return most


@pytest.mark.parametrize(
    ("workers", "family"),
    [
        (2, None),
        (1, "gpt2"),
        (1, "gemma2_softcap"),
        *(
            pytest.param(*case, marks=pytest.mark.full("its number of workers and its family are above"))
            for case in ((1, None), (2, "gpt2"), (2, "gemma2_softcap"))
        ),
    ],
)
@KINDS
def test_reruns_layers_and_keeps_gradient_where_too_few_tokens_fit(
    model_dir, make_batch, adapter, family, workers, tmp_path, monkeypatch
):
    if family is not None:
        _tiny(family).save_pretrained(tmp_path / "model")
        model_dir = tmp_path / "model"
    batch = make_batch(seed=1)
    found, kept = [], []
    for fewest in (1, 2**40):
        monkeypatch.setattr(activations, "_ON_CPU", activations.TokenRange(most=4096, fewest=fewest))
        learner = Learner(model_dir, cpu_threads=workers)
        trained(learner, adapter, batch, steps=1 if isinstance(adapter, LoRA) else 0)
        found.append(gradients(learner, "p", batch))
        if workers == 1:
            kept.append(most_kept(learner, batch))
    assert_close(found[1], found[0], tolerance=1e-5)
    assert workers > 1 or kept[1] < kept[0] / 2


def test_shrinks_micro_batches_with_memory_and_finally_reruns_layers():
    found = [
        activations.micro_batching(100_000, layers=24, bytes_between_layers=4_000, room=room)
        for room in (10**12, 10**8, 10**7, 1)
    ]
    assert [(f.tokens, f.recompute) for f in found] == [(4096, False), (512, False), (64, True), (1, True)]


def test_fills_gpu_as_far_as_memory_was_planned():
    limits = activations.limits_on("cuda", shares_prefixes=True)
    found = [
        activations.micro_batching(7_000_000, layers=28, bytes_between_layers=7_168, room=room, limits=limits)
        for room in (10**12, 10**11, 7 * 10**9)
    ]
    assert [(f.tokens, f.recompute) for f in found] == [(65_536, False), (8192, False), (8192, True)]
