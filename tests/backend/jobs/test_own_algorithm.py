"""A job learns by an algorithm that a pack brings, without another file of the service knowing it."""

from tests.tinkergym.algorithms.installed import ranks, site
from tinkergym.schema import algorithm_registry
from tinkergym.schema.events import JobState
from tinkergym.schema.parsing import parse_spec

__all__ = ["ranks", "site"]


def own_algorithm(**settings):
    own = {"name": "ranks", "group_size": 4, "groups_per_step": 2, **settings}
    return parse_spec({"environment": {"id": "test/Fickle-v0"}, "steps": 2, "algorithm": own}).algorithm


def test_trains_with_the_algorithm_of_a_pack(ranks, lab):
    weights = []
    for failure_weight in (0.5, 0.0, 0.5):
        job_id = lab.start(algorithm=own_algorithm(failure_weight=failure_weight), deterministic=True)
        lab.play_on(job_id)
        assert lab.state(job_id) is JobState.COMPLETED
        assert all(abs(step.metrics["credit_mean"]) < 1e-9 for step in lab.events(job_id, "step"))
        weights.append(lab.weights(job_id, 2))
    assert weights[0] == weights[2] != weights[1]


def test_ends_a_job_whose_pack_is_gone_by_name(ranks, lab):
    job_id = lab.start_later(algorithm=own_algorithm())
    algorithm_registry.forget_packs()
    (ranks / "tinkergym_ranks-0.1.dist-info" / "entry_points.txt").unlink()
    lab.pool.start_job(job_id)
    lab.play_step(job_id)
    lab.until(job_id, lambda: lab.state(job_id).final)
    assert lab.state(job_id) is JobState.FAILED
    assert lab.service.job(job_id).error.field == "algorithm.name"
