from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from backend.fairness.fair_share import heads_needed, next_jobs
from backend.store.store import QueuedJob, QueueGroup


def waiting(*jobs: tuple[str, str, str]) -> list[QueuedJob]:
    return [
        QueuedJob(reason="", job_id=job_id, tenant_id=tenant, model=model, created_at=float(age))
        for age, (job_id, tenant, model) in enumerate(jobs)
    ]


def chosen(jobs: list[QueuedJob], free: dict[str, int], running: dict[str, int] | None = None) -> list[str]:
    return [job.job_id for job in next_jobs(jobs, free_slots=free, running_by_tenant=running or {})]


def test_prefers_the_oldest_job_within_a_tenant():
    assert chosen(waiting(("1", "ada", "m"), ("2", "ada", "m")), {"m": 1}) == ["1"]


def test_prefers_the_tenant_that_runs_least():
    jobs = waiting(("1", "ada", "m"), ("2", "ada", "m"), ("3", "bob", "m"))
    assert chosen(jobs, {"m": 2}) == ["1", "3"]
    assert chosen(jobs, {"m": 1}, {"ada": 1}) == ["3"]


def test_lets_others_pass_a_job_without_a_place():
    assert chosen(waiting(("1", "ada", "full"), ("2", "ada", "m")), {"full": 0, "m": 1}) == ["2"]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=20),
    st.dictionaries(st.sampled_from("xy"), st.integers(-1, 6)),
)
def test_uses_all_places_and_none_twice(jobs, free):
    queue = waiting(*((str(number), tenant, model) for number, (tenant, model) in enumerate(jobs)))
    started = next_jobs(queue, free_slots=free, running_by_tenant={})
    demand = Counter(job.model for job in queue)
    assert Counter(job.model for job in started) == Counter(
        {
            model: min(demand[model], places)
            for model, places in free.items()
            if min(demand[model], places) > 0
        }
    )
    assert len({job.job_id for job in started}) == len(started)


def grouped(queue: list[QueuedJob]) -> list[QueueGroup]:
    oldest: dict[tuple[str, str], int] = {}
    for job in queue:
        oldest.setdefault((job.tenant_id, job.model), int(job.created_at))
    return [
        QueueGroup(tenant_id=tenant, model=model, reason="", oldest=oldest[tenant, model])
        for tenant, model in oldest
    ]


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("xyz")), max_size=40),
    st.dictionaries(st.sampled_from("xyz"), st.integers(-1, 4)),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3)),
    st.dictionaries(st.tuples(st.sampled_from("abcdef"), st.sampled_from("xyz")), st.integers(-1, 3)),
)
def test_chooses_from_the_heads_as_from_the_whole_queue(jobs, free, running, own):
    queue = waiting(*((str(number), tenant, model) for number, (tenant, model) in enumerate(jobs)))
    shares = {"free_slots": free, "running_by_tenant": running, "tenant_slots": own}
    needed = heads_needed(grouped(queue), **shares)
    heads = [
        job
        for (tenant, model), count in needed.items()
        for job in [job for job in queue if (job.tenant_id, job.model) == (tenant, model)][:count]
    ]
    assert next_jobs(heads, **shares) == next_jobs(queue, **shares)
    assert len(heads) <= sum(map(max, free.values(), [0] * len(free))) ** 2
