"""Every version that is kept can be sampled, played and built on, under each of its names."""

import pytest

import tinkergym as tg
from tinkergym.errors import NotFoundError, PolicyVersionGoneError
from tinkergym.schema.sampling import SampleRequest

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def job_id(service, tmp_path_factory):
    rows = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows.write_text('{"prompt": "?", "completion": "yes yes yes"}\n')
    with tg.Client() as client:
        job = client.sft(str(rows), steps=4, learning_rate=3e-2, checkpoint_every=1, keep_checkpoints=2)
        job.wait()
    return job.id


@pytest.fixture
def job(client, job_id):
    return client.job(job_id)


def said(policy):
    return policy.act("?"), policy.last_version


def test_samples_an_older_version_from_its_checkpoint(client, job):
    kept = [checkpoint.policy_version for checkpoint in job.checkpoints()]
    assert kept == [3, 4]
    of = {version: client.policy(f"{job.id}@{version}", temperature=0.0) for version in (0, 3, 4)}
    answers = {version: said(policy)[0] for version, policy in of.items()}
    assert {version: said(policy) for version, policy in of.items()} == {
        version: (answers[version], version) for version in of
    }
    assert answers[4] != answers[0]
    assert said(client.policy(f"{job.id}@step:3", temperature=0.0)) == (answers[3], 3)
    assert said(client.policy(f"{job.id}@latest", temperature=0.0)) == (answers[4], 4)


def test_asks_policy_by_its_own_id(client, job):
    found = client.find_policy(f"{job.id}@step:3")
    assert (found.job_id, found.model, found.version, found.kept) == (job.id, "nano", 3, [3, 4])
    by_id = client.policy(f"{found.policy_id}@3", temperature=0.0)
    assert said(by_id) == said(client.policy(f"{job.id}@3", temperature=0.0))
    request = SampleRequest(request_id="r", policy=found.policy_id, prompt_ids=[65, 66], max_tokens=2)
    assert client.ask(request).policy_version == 4
    assert client.ask(request.model_copy(update={"policy_version": 3})).policy_version == 3
    with pytest.raises(PolicyVersionGoneError):
        client.ask(request.model_copy(update={"policy_version": 2}))
    named = client.ask(request.model_copy(update={"policy": f"{job.id}@3"}))
    assert named == client.ask(request.model_copy(update={"policy_version": 3}))


def test_evaluates_an_older_version(client, job):
    played = client.policy(f"{job.id}@3").evaluate("board/TicTacToeVs-v0", episodes=2)
    versions = {turn.policy_version for trajectory in played.trajectories for turn in trajectory.turns}
    assert (len(played.trajectories), versions) == (2, {3})


def test_rejects_version_that_is_not_kept_and_names_kept_ones(client, job):
    with pytest.raises(PolicyVersionGoneError) as gone:
        client.policy(f"{job.id}@2")
    assert "3, 4" in gone.value.hint
    with pytest.raises(NotFoundError):
        client.policy(f"{job.id}@best")


def test_begins_other_jobs_with_older_version_by_its_policys_name(client, job):
    with client.create_policy(initial_policy=f"{job.id}@3") as policy, client.create_policy() as plain:
        ids = policy.prompt_ids("?")
        sequence = {"token_ids": [*ids, *ids]}
        begun, fresh = policy.logprobs([sequence]).result(), plain.logprobs([sequence]).result()
        assert begun != fresh
        plain.load(f"{job.id}@3").result()
        assert plain.logprobs([sequence]).result() == begun
        with pytest.raises(NotFoundError):
            plain.load(f"{job.id}@2").result()
        assert plain.logprobs([sequence]).result() == begun
        for one in (policy, plain):
            one.cancel()
