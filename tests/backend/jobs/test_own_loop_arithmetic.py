"""Every setting of an own loop's calls reaches the arithmetic, compared with torch on the same model."""

from __future__ import annotations

from copy import deepcopy
from itertools import combinations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from backend.settings.served_models import PACKAGED_MODELS
from tests.backend.jobs.policy_owner import BATCH, SEQUENCE, Owner
from tinkergym.schema.jobs.parts import FullParameters
from tinkergym.schema.optimizer import AdamW
from tinkergym.schema.policy_calls import ForwardBackward, Logprobs, OptimStep, Publish

IDS = ([65, 66, 67, 68, 70, 69], [80, 65, 67])
MASKS = ([False, False, True, True, True, True], [False, True, True])
TEMPERATURES = (0.7, 1.3)
RATIOS = ([1.25, 0.75, 1.4, 0.6], [1.1, 1.25])
ADVANTAGES = ([0.0, 0.0, 1.5, -0.5, 2.0, -1.0], 0.7)
GAPS_TO_REFERENCE = ([0.3, -0.2, 0.1, 0.4], [-0.3, 0.2])

CASES = {
    "cross_entropy": {"loss": "cross_entropy"},
    "cross_entropy by sequence": {"loss": "cross_entropy", "aggregation": "sequence"},
    "cross_entropy over 7": {"loss": "cross_entropy", "aggregation": "constant", "constant_tokens": 7},
    "linear": {"loss": "linear"},
    "ppo": {"loss": "ppo"},
    "ppo by sequence": {"loss": "ppo", "aggregation": "sequence"},
    "ppo over 7": {"loss": "ppo", "aggregation": "constant", "constant_tokens": 7},
    "ppo, low": {"loss": "ppo", "clip_low": 0.3},
    "ppo, high": {"loss": "ppo", "clip_high": 0.28},
    "cispo": {"loss": "cispo"},
    "cispo, low": {"loss": "cispo", "clip_low": 0.3},
    "cispo, high": {"loss": "cispo", "clip_high": 0.28},
    "gspo": {"loss": "gspo", "clip_low": 0.01, "clip_high": 0.02},
    "reinforce": {"loss": "reinforce", "aggregation": "constant", "constant_tokens": 5},
    "importance_sampling": {"loss": "importance_sampling"},
    "dro": {"loss": "dro"},
    "entropy": {"loss": "reinforce", "entropy_coefficient": 0.4},
    "k1": {"loss": "reinforce", "kl_coefficient": 0.5, "kl_estimator": "k1"},
    "k2": {"loss": "reinforce", "kl_coefficient": 0.5, "kl_estimator": "k2"},
    "k3": {"loss": "reinforce", "kl_coefficient": 0.5},
    "less k3": {"loss": "reinforce", "kl_coefficient": 0.25},
}


@pytest.fixture(scope="module")
def model():
    # Progress bars of transformers start a thread that outlives the module.
    disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(PACKAGED_MODELS["nano"]).eval()


def tables(model):
    """Return the logprobs of the whole vocabulary before each trained token, per sequence."""
    return [
        (model(torch.tensor([ids])).logits[0, :-1] / temperature).log_softmax(-1)[mask[1:]]
        for ids, mask, temperature in zip(IDS, MASKS, TEMPERATURES, strict=True)
    ]


def picked(table, ids, mask):
    return table[range(len(table)), np.asarray(ids)[mask]]


def token_losses(loss, logprobs, sampled, advantages, clip_low=0.2, clip_high=0.2):
    """Return the losses of a sequence's tokens, written out; `logprobs` with gradient."""
    ratios, low, high = (logprobs - sampled).exp(), 1 - clip_low, 1 + clip_high
    match loss:
        case "ppo":
            return -torch.minimum(ratios * advantages, ratios.clamp(low, high) * advantages)
        case "gspo":
            whole = (logprobs - sampled).mean().detach() + logprobs - logprobs.detach()
            return -torch.minimum(whole.exp() * advantages, whole.exp().clamp(low, high) * advantages)
        case "cispo":
            return -ratios.detach().clamp(low, high) * advantages * logprobs
        case "importance_sampling":
            return -ratios * advantages
        case "dro":
            return -(advantages * (logprobs - sampled) - 0.05 * (logprobs - sampled) ** 2)
    return -advantages * logprobs


def by_formula(model, settings, sampled, reference):
    """Return a batch's loss and the norm of its gradient, from the definitions."""
    settings = dict(settings)
    aggregation = settings.pop("aggregation", "token")
    divisor, entropies = settings.pop("constant_tokens", 1), settings.pop("entropy_coefficient", 0)
    kl, estimator = settings.pop("kl_coefficient", 0), settings.pop("kl_estimator", "k3")
    per_sequence = []
    for number, table in enumerate(tables(model)):
        own = picked(table, IDS[number], MASKS[number])
        advantages = torch.tensor(ADVANTAGES[number]).expand(len(IDS[number]))[MASKS[number]]
        gaps = own - torch.tensor(reference[number])
        penalties = {"k1": gaps, "k2": gaps**2 / 2, "k3": (-gaps).exp() - 1 + gaps}
        losses = token_losses(
            logprobs=own, sampled=torch.tensor(sampled[number]), advantages=advantages, **settings
        )
        entropy = -(table.exp() * table).sum(-1)
        per_sequence.append(losses + kl * penalties[estimator] - entropies * entropy)
    if settings["loss"] == "linear":
        total = torch.cat(per_sequence).sum()
    elif aggregation == "token":
        total = torch.cat(per_sequence).mean()
    elif aggregation == "sequence":
        total = torch.stack([losses.mean() for losses in per_sequence]).mean()
    else:
        total = torch.stack([losses.sum() / divisor for losses in per_sequence]).mean()
    model.zero_grad()
    total.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    return float(total.detach()), float(norm)


def test_computes_each_loss_with_its_settings_by_the_formula(lab, model):
    owner = Owner(lab, adapter=FullParameters())
    with torch.no_grad():
        known = [picked(*one).tolist() for one in zip(tables(model), IDS, MASKS, strict=True)]
    sampled = [list(own - np.log(of)) for own, of in zip(known, RATIOS, strict=True)]
    reference = [list(np.subtract(*both)) for both in zip(known, GAPS_TO_REFERENCE, strict=True)]
    sequences = [
        {
            "token_ids": IDS[number],
            "loss_mask": MASKS[number],
            "sampling_logprobs": [None] * MASKS[number].index(True) + sampled[number],
            "advantage": ADVANTAGES[number],
            "temperature": TEMPERATURES[number],
            "reference_logprobs": reference[number],
        }
        for number in range(2)
    ]
    expected = {}
    for name, settings in CASES.items():
        expected[name] = by_formula(model, settings, sampled, reference)
        passed = owner.call(ForwardBackward(sequences=sequences, **settings))
        for own, by_torch in zip(passed.logprobs, known, strict=True):
            assert own == pytest.approx(by_torch, abs=1e-4)
        # So small a rate leaves the policy as it was.
        norm = owner.call(OptimStep(learning_rate=1e-20)).metrics["grad_norm"]
        assert (passed.loss, norm) == pytest.approx(expected[name], rel=1e-3, abs=1e-4), name
    for one, other in combinations(CASES, 2):
        assert expected[one] != pytest.approx(expected[other], rel=1e-2), (one, other)


DEFAULTS = {"max_grad_norm": 1.0, "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
STEP = {"max_grad_norm": 0.5, "weight_decay": 20.0}
OPTIMIZER = {"beta1": 0.5, "beta2": 0.6, "eps": 1e-2}


def stepped_by_torch(model, *, learning_rate, max_grad_norm, weight_decay, beta1, beta2, eps):
    """Return the logprobs of `SEQUENCE` after a step on each of `IDS`."""
    model = deepcopy(model)
    adamw = torch.optim.AdamW(
        model.parameters(), learning_rate, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay
    )

    def logprobs(ids):
        return picked(model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1), ids, slice(1, None))

    for ids in IDS:
        adamw.zero_grad()
        logprobs(ids).mean().neg().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        adamw.step()
    with torch.no_grad():
        return logprobs(SEQUENCE["token_ids"]).tolist()


def test_steps_as_adamw_does_with_each_setting(lab, model):
    owner = Owner(lab, adapter=FullParameters(), optimizer=AdamW(**OPTIMIZER))
    for ids in IDS:
        batch = ForwardBackward(sequences=[{"token_ids": ids}])
        owner.call(batch, OptimStep(learning_rate=1e-3, **STEP))
    settings = {"learning_rate": 1e-3, **STEP, **OPTIMIZER}
    found = owner.logprobs()[0]
    assert found == pytest.approx(stepped_by_torch(model, **settings), abs=1e-4)
    for name, default in {**DEFAULTS, "learning_rate": 2e-3}.items():
        without = stepped_by_torch(model, **{**settings, name: default})
        assert found != pytest.approx(without, abs=1e-2), name


def test_computes_logprobs_at_the_temperature_of_each_sequence(lab):
    owner, prompt = Owner(lab), [65, 66]
    owner.call(BATCH, OptimStep(learning_rate=1e-2), Publish())
    completions = [owner.sampled(prompt, max_tokens=6, temperature=one, seed=3) for one in TEMPERATURES]
    sequences = [
        {
            "token_ids": [*prompt, *one.token_ids],
            "loss_mask": [False] * 2 + [True] * len(one.token_ids),
            "sampling_logprobs": [None] * 2 + one.sampling_logprobs,
            "temperature": temperature,
        }
        for one, temperature in zip(completions, TEMPERATURES, strict=True)
    ]
    passed = owner.call(ForwardBackward(sequences=sequences, loss="ppo"))
    assert passed.metrics["ratio_max"] == pytest.approx(1, abs=1e-4)
    for found in (passed.logprobs, owner.call(Logprobs(sequences=sequences)).logprobs):
        for own, completion in zip(found, completions, strict=True):
            assert own == pytest.approx(completion.sampling_logprobs, abs=1e-4)


def test_adds_up_gradients_of_several_calls_to_one_step(lab):
    together, apart = Owner(lab), Owner(lab)
    both = [{"token_ids": IDS[0], "advantage": 0.5}, {"token_ids": IDS[1], "advantage": -2.0}]
    step = OptimStep(learning_rate=1e-2)
    together.call(ForwardBackward(sequences=both, loss="linear"))
    for own in both:
        apart.call(ForwardBackward(sequences=[own], loss="linear"))
    norms = [owner.call(step).metrics["grad_norm"] for owner in (together, apart)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert together.logprobs()[0] == pytest.approx(apart.logprobs()[0], abs=1e-4)
