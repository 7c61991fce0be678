"""Jobs that only sample: each row once and in order, whatever happens to their workers."""

import math

import pytest

from backend.store.step_files import RowResults
from backend.store.uploads import Uploads
from tests.backend.scripted_jobs import RENDERER
from tinkergym.datasets.prompts import prompt_rows
from tinkergym.inference.sampling_plan import seed_of
from tinkergym.remote.inference_jobs import prepared_prompts
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import Budget
from tinkergym.schema.parsing import parse_spec
from tinkergym.schema.sampling import RowResult
from tinkergym.tasks import SequenceTasks
from tinkergym.testing.samplers import RandomTokenSampler

ROWS = [{"prompt": f"say {number}", "id": number} for number in range(10)]


class Metered(RandomTokenSampler):
    """Answers some requests, and holds the others back until it is told to answer all."""

    def __init__(self, left):
        super().__init__(256)
        self.left, self.asked, self._held = left, [], []

    def submit(self, requests, deliver):
        self.asked.append([request.seed for request in requests])
        count = min(len(requests), self.left)
        self.left -= count
        if count:
            super().submit(requests[:count], deliver)
        self._held.append((requests[count:], deliver))


class Inference:
    """Starts inference jobs of a tenant, and reads their results."""

    def __init__(self, lab, renderer):
        self._lab, self._renderer = lab, renderer

    def start(self, rows=ROWS, **settings):
        found = prompt_rows(SequenceTasks(list(rows)), self._renderer, keep=["id"])
        ready = prepared_prompts(found)
        uploads = Uploads(self._lab.config.uploads, self._lab.tenant_id)
        for name, body in ready.bodies.items():
            uploads.add_chunk(name, body, most_bytes=2**24)
        data = uploads.complete(ready.manifest, most_bytes=2**24).data_id
        settings = {"rows_per_step": 3, "n": 2, "decoding": {"max_turn_tokens": 4}, **settings}
        steps = math.ceil(len(rows) / settings["rows_per_step"])
        spec = parse_spec({"kind": "inference", "data": data, "steps": steps, **settings})
        job_id = self._lab.tenant.create_job(spec, {}).job_id
        self._lab.start_job(job_id)
        return job_id

    def run(self, **settings):
        job_id = self.start(**settings)
        self.ends(job_id)
        return job_id

    def ends(self, job_id, state=JobState.COMPLETED):
        self._lab.until(job_id, lambda: self._lab.state(job_id).final)
        assert self._lab.state(job_id) is state, self._lab.events(job_id, "state")[-1]

    def results(self, job_id):
        job = self._lab.service.job(job_id)
        files = RowResults(self._lab.config.job_files.below(job_id))
        return [RowResult.model_validate_json(line) for line in files.read(1, job.step)]


@pytest.fixture
def inference(jobs):
    return Inference(jobs, RENDERER)


def test_samples_each_row_with_seeds_of_its_own(jobs, inference):
    jobs.sampler = Metered(left=1000)
    job_id = inference.run(decoding={"max_turn_tokens": 4, "seed": 9})
    results = inference.results(job_id)
    assert [(one.row, one.note.kept["id"], len(one.samples)) for one in results] == [
        (number, number, 2) for number in range(10)
    ]
    assert jobs.sampler.asked == [[seed_of(9, row, sample) for row in range(10) for sample in range(2)]]
    steps = jobs.events(job_id, "step")
    assert [(step.step, step.records) for step in steps] == [(1, 3), (2, 3), (3, 3), (4, 1)]
    tokens = sum(len(sample.token_ids) for one in results for sample in one.samples)
    assert jobs.service.job(job_id).used_tokens == tokens


def test_continues_after_the_last_recorded_step_of_a_lost_worker(jobs, inference):
    smooth = inference.run()
    jobs.sampler = Metered(left=15)  # two steps, and three completions of the third
    job_id = inference.start()
    jobs.until(job_id, lambda: jobs.service.job(job_id).step == 2)
    jobs.sampler = Metered(left=1000)
    jobs.take_over(job_id)
    inference.ends(job_id)
    assert inference.results(job_id) == inference.results(smooth)
    assert jobs.sampler.asked == [[seed_of(0, row, sample) for row in range(6, 10) for sample in range(2)]]


def test_pauses_between_steps_and_goes_on(jobs, inference):
    smooth = inference.run()
    jobs.sampler = Metered(left=8)
    job_id = inference.start()
    jobs.until(job_id, lambda: jobs.service.job(job_id).step == 1)
    jobs.tenant.request_pause(job_id)
    jobs.replace_worker()
    jobs.until_state(job_id, JobState.PAUSED)
    jobs.sampler = Metered(left=1000)
    jobs.tenant.request_resume(job_id)
    jobs.start_job(job_id)
    inference.ends(job_id)
    assert inference.results(job_id) == inference.results(smooth)


def test_ends_while_it_waits_for_completions_if_cancelled(jobs, inference):
    jobs.sampler = Metered(left=7)
    job_id = inference.start()
    jobs.until(job_id, lambda: jobs.service.job(job_id).step == 1)
    jobs.tenant.request_cancel(job_id)
    inference.ends(job_id, JobState.CANCELLED)
    assert [one.row for one in inference.results(job_id)] == [0, 1, 2]


def test_pauses_when_its_budget_is_used_up(jobs, inference):
    job_id = inference.start(budget=Budget(tokens=10))
    jobs.until_state(job_id, JobState.PAUSED)
    assert jobs.service.job(job_id).step == 1


def test_notes_errors_of_single_rows_and_goes_on(inference):
    rows = [{"prompt": "a"}, {"prompt": 7}, {"prompt": "b"}]
    results = inference.results(inference.run(rows=rows))
    assert [[sample.error is not None for sample in one.samples] for one in results] == [
        [False] * 2,
        [True] * 2,
        [False] * 2,
    ]


def test_samples_and_survives_a_kill_on_a_real_pool(lab, written):
    inference = Inference(lab, written.renderer)
    rows = [{"prompt": f"{number} + 1?", "id": number} for number in range(24)]
    smooth = inference.run(rows=rows)
    job_id = inference.start(rows=rows)
    lab.until(job_id, lambda: lab.service.job(job_id).step >= 1)
    lab.take_over(job_id)
    inference.ends(job_id)
    drawn = [
        [[sample.token_ids for sample in one.samples] for one in inference.results(each)]
        for each in (smooth, job_id)
    ]
    assert drawn[0] == drawn[1]
    assert [one.row for one in inference.results(job_id)] == list(range(24))
