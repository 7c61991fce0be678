"""Certificates of real runs, their bundles, and what is found when a byte of one is changed."""

import json
import tarfile

import pytest

import tinkergym as tg
from tinkergym.certificates import verify

pytestmark = pytest.mark.service

SETTINGS = {
    "steps": 2,
    "algorithm": tg.GRPO(group_size=2, groups_per_step=2),
    "sampling": tg.Sampling(max_turn_tokens=4, temperature=3.0),
    "checkpoint_every": 1,
}


@pytest.fixture(scope="module")
def job(service):
    with tg.Client() as client:
        job = client.train("board/TicTacToeVs-v0", env_kwargs={"on_illegal": "random"}, **SETTINGS)
        job.wait(warn=False)
        yield job


@pytest.fixture(scope="module")
def bundle(job, tmp_path_factory):
    return job.certificate(tmp_path_factory.mktemp("bundle"), bundle=True).bundle


def verdicts(certificate):
    return {check.name: check.verdict for check in certificate.checks}


def changed(bundle, folder, name, spoil):
    """Copy a bundle in which one file was spoiled."""
    target = folder / "changed.tar"
    with tarfile.open(bundle) as archive:
        entry = archive.getmember(name)
    body = bytearray(bundle.read_bytes())
    place = entry.offset_data + spoil(bytes(body[entry.offset_data : entry.offset_data + entry.size]))
    body[place] ^= 1
    target.write_bytes(body)
    return target


def test_passes_every_check_of_a_clean_run(job, tmp_path):
    written = job.certificate(tmp_path)
    assert set(verdicts(written).values()) == {"holds"}, written.checks
    facts = written.certificate.facts
    assert {one.version for one in facts.publishes} == {one.version for one in facts.agreements} == {0, 1, 2}
    assert facts.adapters[0].version == 1
    assert [one.episodes for one in facts.steps] == [4, 4]
    page = written.page.read_text()
    assert "<script" not in page
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")
    alone = verify(written.json)
    assert (alone.ok, alone.checked, alone.problems) == (True, "certificate", [])


def test_finds_out_a_certificate_that_was_changed(job, tmp_path):
    path = job.certificate(tmp_path).json
    document = json.loads(path.read_text())
    document["facts"]["steps"][1]["matched_tokens"] -= 1
    path.write_text(json.dumps(document))
    found = verify(path)
    assert not found.ok
    assert any("own hash" in problem for problem in found.problems)
    assert any("trained_tokens_were_sampled" in problem for problem in found.problems)


def test_checks_bundle_with_everything_in_it(bundle, client):
    found = verify(bundle, key=client.health().operator_key)
    assert (found.ok, found.checked, found.signed, found.problems) == (True, "bundle", "valid", [])
    assert found.files >= 6


def test_names_one_changed_byte_of_an_adapter(bundle, tmp_path):
    name = "checkpoints/step-000002/adapter_model.safetensors"
    found = verify(changed(bundle, tmp_path, name, lambda body: len(body) // 2))
    assert not found.ok
    assert len(found.problems) == 1
    assert name in found.problems[0]


def test_names_one_changed_byte_of_an_episode(bundle, job, tmp_path):
    name = "episodes/step-000001.jsonl"
    found = verify(changed(bundle, tmp_path, name, lambda body: body.index(b'"reward":') + 9))
    assert not found.ok
    # Its reward may also change the mean that the log tells.
    assert sum(f"{job.id}:1:" in problem for problem in found.problems) == 1


def test_names_one_changed_byte_of_an_event(bundle, tmp_path):
    found = verify(changed(bundle, tmp_path, "events.jsonl", lambda body: body.index(b"\n") + 30))
    assert not found.ok
    assert found.problems == ["events.jsonl: event 2 differs from the one that was packed"]


@pytest.mark.parametrize(
    ("kind", "answers"),
    [
        pytest.param("sft", lambda n: {"completion": str(n + 1)}, id="sft"),
        pytest.param(
            "preference",
            lambda n: {"chosen": str(n + 1), "rejected": "no"},
            id="preference",
            marks=pytest.mark.full("as `sft`"),
        ),
    ],
)
def test_certifies_runs_on_data_too(client, tmp_path, kind, answers):
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{n}+1=", **answers(n)}) + "\n" for n in range(8)))
    job = getattr(client, kind)(data, steps=2, batch_size=4)
    job.wait()
    written = job.certificate(tmp_path, bundle=True)
    assert set(verdicts(written).values()) == {"holds"}, written.checks
    assert verify(written.bundle).ok


def test_certifies_distillation_runs_too(client, tmp_path):
    settings = {name: SETTINGS[name] for name in ("steps", "sampling", "checkpoint_every")}
    job = client.distill("board/TicTacToeVs-v0", teacher="nano", episodes_per_step=4, **settings)
    job.wait(warn=False)
    written = job.certificate(tmp_path, bundle=True)
    found = verdicts(written)
    assert found["trained_tokens_were_sampled"] == found["every_episode_accounted_for"] == "holds"
    # A student that equals its teacher has little to learn: its adapter may stay zero.
    assert "fails" not in {found[name] for name in found if name != "adapter_bound"}, written.checks
    assert verify(written.bundle).ok


def test_trains_further_on_a_jobs_episodes_also_with_another_reward(job, client):
    episodes = job.episodes()
    assert [(one.step, one.index) for one in episodes] == [(step, n) for step in (1, 2) for n in range(4)]
    assert [one.step for one in job.episodes(first_step=2)] == [2] * 4
    rows = episodes.to_sft(best_of=2)
    settings = {"steps": 1, "batch_size": 2}
    assert client.sft(rows, initial_policy=job.id, **settings).wait().state == "completed"
    found = job.rescore(lambda episode: -len(episode.answers[0]))
    assert found.summary["episodes"] == len(episodes.filter(completed=True))
    assert found.sft(best_of=2, **settings).wait().state == "completed"


class Quiz(tg.SingleTurnEnv):
    tasks = tg.tasks.SequenceTasks([{"question": f"{n} + 1?"} for n in range(4)])

    def ask(self, options):
        return self.tasks.choose(self.np_random, options)[1]["question"]

    def score(self, answer):
        return float(len(answer))


def test_pins_tasks_of_environment_by_their_hash(client, tmp_path):
    job = client.train(Quiz, **SETTINGS)
    job.wait(warn=False)
    written = job.certificate(tmp_path)
    assert list(written.certificate.facts.data.values()) == [Quiz.tasks.fingerprint]
    assert verdicts(written)["data_pinned"] == "holds"
    document = json.loads(written.json.read_text())
    for name in document["facts"]["data"]:
        document["facts"]["data"][name] = "0" * 64
    written.json.write_text(json.dumps(document))
    assert any("data_pinned" in problem for problem in verify(written.json).problems)
