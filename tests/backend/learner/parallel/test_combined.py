"""What ranks make of each other's steps. A RuntimeError ends their group."""

import pytest

from backend.learner.parallel.combined import same_step
from backend.learner.pass_results import OptimStepResult
from tinkergym.errors import NonFiniteLossError


def step(grad_norm):
    return OptimStepResult(
        grad_norm=grad_norm, learning_rate=1e-3, optimizer_step=1, skipped=False, metrics={}
    )


def test_takes_the_step_that_all_ranks_took():
    assert same_step([step(2.0), step(2.0)]) == step(2.0)


def test_raises_what_all_ranks_refuse():
    with pytest.raises(NonFiniteLossError):
        same_step([NonFiniteLossError("nan"), NonFiniteLossError("nan")])


def test_ends_group_over_a_gradient_only_one_rank_refuses():
    with pytest.raises(RuntimeError):
        same_step([step(2.0), NonFiniteLossError("nan")])


def test_ends_group_over_different_norms_of_one_gradient():
    with pytest.raises(RuntimeError):
        same_step([step(2.0), step(2.5)])
