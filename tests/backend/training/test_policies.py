from __future__ import annotations

import pytest

from backend.training.policies import PolicyDirectory, StoredPolicy
from backend.weights import AdapterWeights
from tinkergym.errors import InvalidRequestError, NotFoundError
from tinkergym.wire import SampleRequest

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
    """A directory over checkpoints in memory."""

    def __init__(self, stored: dict[str, int], keep_idle: int = 2) -> None:
        self.engine, self.stored, self.reads = Engine(), stored, 0
        self.directory = PolicyDirectory(
            self.engine, model_names={"nano"}, load=self.load, keep_idle=keep_idle
        )

    def load(self, policy: str) -> StoredPolicy | None:
        self.reads += 1
        version = self.stored.get(policy)
        return None if version is None else StoredPolicy(version=version, weights=WEIGHTS)

    def resolve(self, policy: str, version: int | None = None) -> tuple[str, int | None]:
        request = SampleRequest(
            request_id="r", policy=policy, policy_version=version, prompt_ids=[1], max_tokens=1
        )
        resolved = self.directory.resolve(request)
        return resolved.policy, resolved.policy_version


def test_a_models_name_means_the_model_without_an_adapter():
    assert Shelf({}).resolve("nano") == ("", 0)


@pytest.mark.parametrize("version", [7, -1])
def test_a_models_name_with_a_version_is_refused_rather_than_answered_by_another(version):
    with pytest.raises(InvalidRequestError, match="has no version"):
        Shelf({}).resolve("nano", version)


def test_no_version_means_the_newest_that_is_loaded():
    shelf = Shelf({})
    shelf.engine.publish("job-1", 7, WEIGHTS)
    assert shelf.resolve("job-1") == ("job-1", None)  # for the engine to choose
    assert shelf.resolve("job-1", 6) == ("job-1", 6)  # for the engine to refuse


def test_version_0_of_a_trained_policy_is_the_model():
    shelf = Shelf({"job-1": 7})
    assert shelf.resolve("job-1", 0) == ("", 0)


def test_an_ended_jobs_policy_is_read_once():
    shelf = Shelf({"job-1": 7})
    assert shelf.resolve("job-1") == shelf.resolve("job-1") == ("job-1", None)
    assert shelf.reads == 1


def test_a_policy_without_weights_is_not_found():
    with pytest.raises(NotFoundError, match="no weights yet"):
        Shelf({}).resolve("job-1")


def test_the_policy_of_a_running_job_is_its_loops_to_publish():
    shelf = Shelf({"job-1": 7})
    shelf.directory.hold("job-1")
    with pytest.raises(NotFoundError):
        shelf.resolve("job-1")


def test_the_policy_that_was_longest_not_asked_for_makes_room():
    shelf = Shelf({"a": 1, "b": 2, "c": 3})
    for policy in ("a", "b", "a", "c"):
        shelf.resolve(policy)
    assert set(shelf.engine.loaded()) == {"a", "c"}


def test_policies_in_training_are_not_pushed_out():
    shelf = Shelf({"b": 2, "c": 3}, keep_idle=1)
    shelf.directory.hold("a")
    shelf.engine.publish("a", 1, WEIGHTS)
    shelf.resolve("b")
    shelf.resolve("c")
    assert set(shelf.engine.loaded()) == {"a", "c"}
    shelf.directory.release("a")
    assert set(shelf.engine.loaded()) == {"a"}
