"""The inference job writes what `policy.generate` writes, on a service with everything in it."""

import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError

pytestmark = pytest.mark.service


def test_writes_as_a_job_what_generate_writes(client, tmp_path):
    rows = [{"id": number, "text": f"{number} and {number} make "} for number in range(8)]
    rows += [{"id": 8, "text": "long " * 2000}, {"id": 9, "prompt": 7}]
    how = {"n": 2, "keep": ["id"], "max_tokens": 6, "seed": 3}
    client.policy("nano").generate(rows, tmp_path / "here.jsonl", **how)
    job = client.infer("nano", rows, rows_per_step=4, **how)
    assert job.wait().step == 3
    assert job.write_results(tmp_path / "job.jsonl") == 20
    assert (tmp_path / "job.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()
    assert job.write_results(tmp_path / "job.jsonl") == 20
    with pytest.raises(InvalidRequestError):
        job.policy()


def test_samples_the_version_that_a_trained_policy_had(client, tmp_path):
    class SayFive(tg.SingleTurnEnv):
        def ask(self, options):
            return "2 + 3 = ?"

        def score(self, answer):
            return float(answer.strip() == "5")

    trained = client.train(SayFive, steps=1, algorithm=tg.GRPO(group_size=2, groups_per_step=1))
    trained.wait()
    job = client.infer(trained.id, [{"prompt": "2 + 3 = ?"}], max_tokens=4)
    job.wait()
    assert job.spec.policy == f"{trained.id}@1"
    assert [line["policy_version"] for line in job.results()] == [1]
