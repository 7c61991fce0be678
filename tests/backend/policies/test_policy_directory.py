from __future__ import annotations

import pytest

from backend.compute.weights import AdapterWeights
from backend.policies.policy_directory import PolicyDirectory, StoredPolicy
from tinkergym.errors import (
    InvalidRequestError,
    NotFoundError,
    PolicyVersionGoneError,
    ServiceUnavailableError,
)
from tinkergym.schema.events import ErrorView
from tinkergym.schema.sampling import SampleFailure, SampleRequest

WEIGHTS = AdapterWeights(rank=1, alpha=1.0, tensors={})


class Engine:
    def __init__(self) -> None:
        self.versions: dict[str, int] = {}

    def publish(self, policy, version, weights):
        self.versions[policy] = version
        return ""

    def retire(self, policy):
        self.versions.pop(policy, None)

    def loaded(self):
        return dict(self.versions)


class Shelf:
    """A directory over checkpoints in memory: of job-N is policy-N."""

    def __init__(self, stored: dict[str, list[int]], keep_idle: int = 2, *, from_base: bool = True) -> None:
        self.engine, self.stored, self.read = Engine(), stored, []
        self.from_base, self.repeated = from_base, None
        self.directory = PolicyDirectory(
            self.engine, model_names={"nano"}, find=self.find, keep_idle=keep_idle
        )

    def find(self, name: str) -> StoredPolicy:
        number = name.removeprefix("job-").removeprefix("policy-")
        if number not in self.stored:
            raise NotFoundError(f"there is no {name}")

        def read(version):
            self.read.append((number, version))
            return WEIGHTS

        return StoredPolicy(
            policy_id=f"policy-{number}",
            versions=tuple(self.stored[number]),
            read=read,
            from_base=self.from_base,
            repeats_until=self.repeated,
        )

    def train(self, number: str, version: int | None = None) -> None:
        """Have a job train the policy here, and publish a version."""
        self.directory.hold(f"policy-{number}", job_id=f"job-{number}", from_base=self.from_base)
        if version is not None:
            self.engine.publish(f"policy-{number}", version, WEIGHTS)

    def resolve(self, policy: str, version: int | None = None, *, training: bool = False):
        request = SampleRequest(
            request_id="r", policy=policy, policy_version=version, prompt_ids=[1], max_tokens=1
        )
        resolved = self.directory.resolve(request, is_training=lambda: training)
        return resolved.policy, resolved.policy_version


def test_means_model_without_adapter_by_a_models_name():
    assert Shelf({}).resolve("nano") == ("", 0)


def test_rejects_a_models_name_with_version_instead_of_answering_otherwise():
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "policy_version"):
        Shelf({}).resolve("nano", 7)


@pytest.mark.parametrize("name", ["job-1", "policy-1"])
def test_treats_job_and_its_policy_as_names_of_one(name):
    trained, ended = Shelf({"1": []}), Shelf({"1": [7]})
    trained.train("1", 7)
    assert trained.resolve(name) == ended.resolve(name) == ("policy-1", None)  # for the engine to choose
    assert (trained.directory.trained_by(name), ended.directory.trained_by(name)) == ("job-1", None)


def test_leaves_rejection_of_a_future_version_to_the_engine():
    shelf = Shelf({"1": []})
    shelf.train("1", 7)
    assert shelf.resolve("job-1", 8) == ("policy-1", 8)


def test_means_model_by_version_0_of_trained_policy():
    shelf = Shelf({"1": [7]})
    assert shelf.resolve("job-1", 0) == ("", 0)
    assert shelf.read == []


def test_resolves_version_0_to_the_policy_it_began_with():
    shelf = Shelf({"1": [0, 7]}, from_base=False)
    assert shelf.resolve("job-1", 0) == ("policy-1@0", 0)
    assert shelf.read == [("1", 0)]


def test_reads_policy_of_an_ended_job_once():
    shelf = Shelf({"1": [6, 7]})
    assert shelf.resolve("job-1") == shelf.resolve("job-1") == ("policy-1", None)
    assert shelf.resolve("job-1", 7) == ("policy-1", 7)
    assert shelf.read == [("1", 7)]


@pytest.mark.parametrize("trained", [True, False])
def test_loads_kept_older_version_next_to_the_newest(trained):
    shelf = Shelf({"1": [3, 5, 7]})
    if trained:
        shelf.train("1", 8)
    else:
        shelf.resolve("job-1")
        shelf.read.clear()
    assert shelf.resolve("job-1", 5) == shelf.resolve("policy-1", 5) == ("policy-1@5", 5)
    assert shelf.resolve("job-1") == ("policy-1", None)
    assert shelf.read == [("1", 5)]


def test_rejects_version_that_is_not_kept_and_names_kept_ones():
    shelf = Shelf({"1": [3, 5]})
    shelf.train("1", 8)
    with pytest.raises(PolicyVersionGoneError) as caught:
        shelf.resolve("job-1", 4)
    assert caught.value.field == "policy_version"


def test_gives_no_version_from_disk_to_episodes_trained_on():
    shelf = Shelf({"1": [5]})
    shelf.train("1", 8)
    assert shelf.resolve("job-1", 5, training=True) == ("policy-1", 5)  # for the engine to refuse
    assert shelf.read == []


def test_rereads_older_versions_when_the_job_resumes_and_makes_others():
    shelf = Shelf({"1": [5, 7]})
    shelf.resolve("job-1", 5)
    shelf.train("1", 7)
    assert set(shelf.engine.loaded()) == {"policy-1"}
    shelf.resolve("job-1", 5)
    assert shelf.read == [("1", 5), ("1", 5)]


def test_reports_policy_without_weights_as_not_found():
    with pytest.raises(NotFoundError, match="no weights yet"):
        Shelf({"1": []}).resolve("job-1")


def test_leaves_publishing_of_a_running_jobs_policy_to_its_loop():
    shelf = Shelf({"1": [7]})
    shelf.train("1")
    with pytest.raises(NotFoundError):
        shelf.resolve("job-1")
    with pytest.raises(NotFoundError):
        shelf.resolve("job-1", 7, training=True)


def test_evicts_policy_that_was_longest_not_asked_for():
    shelf = Shelf({"1": [1], "2": [2], "3": [3]})
    for number in "1213":
        shelf.resolve(f"job-{number}")
    assert set(shelf.engine.loaded()) == {"policy-1", "policy-3"}


def test_keeps_policy_loaded_until_its_requests_are_answered():
    shelf, answers = Shelf({"1": [1, 2, 3]}, keep_idle=1), []
    answering = shelf.directory.answering(answers.extend)

    def ask(version: int) -> str:
        request = SampleRequest(
            request_id=f"r{version}", policy=f"job-1@{version}", prompt_ids=[1], max_tokens=1
        )
        return shelf.directory.resolve_for(answering, request, is_training=lambda: True).policy

    asked = [ask(version) for version in (1, 2, 3)]
    assert set(shelf.engine.loaded()) == set(asked)
    error = ErrorView.model_validate(NotFoundError("gone").to_wire())
    answering([SampleFailure(request_id="r1", error=error), SampleFailure(request_id="r3", error=error)])
    assert [answer.request_id for answer in answers] == ["r1", "r3"]
    ask(2)
    assert set(shelf.engine.loaded()) == {asked[1]}


def test_keeps_no_policy_loaded_for_a_gone_client():
    shelf = Shelf({"1": [1, 2]}, keep_idle=1)

    class Gone:
        gone = True

        def __call__(self, answers):
            raise AssertionError("its requests are dropped")

    request = SampleRequest(request_id="r", policy="job-1@1", prompt_ids=[1], max_tokens=1)
    shelf.directory.resolve_for(shelf.directory.answering(Gone()), request, is_training=lambda: False)
    shelf.resolve("job-1@2")
    assert set(shelf.engine.loaded()) == {"policy-1@2"}


def test_never_evicts_policies_in_training():
    shelf = Shelf({"1": [], "2": [2], "3": [3]}, keep_idle=1)
    shelf.train("1", 1)
    shelf.resolve("job-2")
    shelf.resolve("job-3")
    assert set(shelf.engine.loaded()) == {"policy-1", "policy-3"}
    shelf.directory.release("policy-1")
    assert set(shelf.engine.loaded()) == {"policy-1"}


def test_waits_for_version_that_is_published_again():
    shelf = Shelf({"1": [5]})
    shelf.repeated = 7
    with pytest.raises(ServiceUnavailableError):  # its job is not here yet
        shelf.resolve("job-1", 7)
    for version in (6, 8):
        shelf.repeated = version - 1 if version == 8 else 5
        with pytest.raises(PolicyVersionGoneError):
            shelf.resolve("job-1", version)
    with pytest.raises(ServiceUnavailableError):  # and this one has nothing yet
        unpublished = Shelf({"2": []})
        unpublished.repeated = 0
        unpublished.resolve("job-2")
    shelf.train("1", 5)
    shelf.directory.await_version("policy-1", 7)
    for version in (None, 7):
        with pytest.raises(ServiceUnavailableError):
            shelf.resolve("job-1", version)
    shelf.engine.publish("policy-1", 7, WEIGHTS)
    shelf.directory.await_version("policy-1", None)
    assert shelf.resolve("job-1", 7) == ("policy-1", 7)


def test_loads_newest_version_of_policy_trained_by_calls_once():
    shelf = Shelf({"1": [7]})
    shelf.directory.hold("policy-1", job_id="job-1", by_calls=True)
    shelf.engine.publish("policy-1", 7, WEIGHTS)
    assert shelf.resolve("job-1", 7) == ("policy-1", 7)
    assert shelf.read == []


def test_takes_version_its_owner_saved_last_as_newest_after_end():
    shelf = Shelf({"1": [2, 4]})
    shelf.directory.hold("policy-1", job_id="job-1", by_calls=True)
    shelf.engine.publish("policy-1", 3, WEIGHTS)
    shelf.repeated = 3  # It only gave up its place.
    shelf.directory.release("policy-1")
    assert shelf.resolve("job-1") == ("policy-1", None)
    assert shelf.engine.loaded() == {"policy-1": 3}
    shelf.repeated = None
    shelf.directory.release("policy-1")
    assert shelf.resolve("job-1") == ("policy-1", None)
    assert shelf.engine.loaded() == {"policy-1": 4}


def test_loads_version_saved_after_last_publish_when_its_job_ended():
    shelf = Shelf({"1": [2, 4]})
    shelf.train("1", 2)
    shelf.directory.release("policy-1")
    assert shelf.resolve("job-1", 4) == ("policy-1@4", 4)
    assert shelf.resolve("job-1", 2) == ("policy-1", 2)
