from __future__ import annotations

from backend.jobs.all_policies import together
from backend.jobs.learn_phase import Learned


def test_reports_what_several_policies_learned_by_name_without_averaging():
    learned = together(
        {
            "x": Learned(loss=1.0, metrics={"kl": 0.5}, trained_tokens=3),
            "o": Learned(loss=None, metrics={"kl": 0.25}, trained_tokens=0),
        }
    )
    assert (learned.loss, learned.trained_tokens) == (None, 3)
    assert learned.metrics == {
        "policy/x/loss": 1.0,
        "policy/x/kl": 0.5,
        "policy/x/trained_tokens": 3.0,
        "policy/o/kl": 0.25,
        "policy/o/trained_tokens": 0.0,
    }


def test_reports_what_a_single_policy_learned_as_it_is():
    learned = Learned(loss=1.0, metrics={"kl": 0.5}, trained_tokens=3)
    assert together({"": learned}) is learned
