"""Two engine hosts beside a pool's own engine: what they answer, and what happens when they die."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import torch

from backend.compute.weights import AdapterWeights
from backend.engines.asking import Asked
from backend.engines.scripted.scripted_engine import ScriptedEngine
from tests.backend.engines.fleet import Fleet
from tinkergym.errors import PolicyVersionGoneError, ServiceUnavailableError
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

OWN, FIRST, SECOND = 100, 200, 300
"""The tokens of each engine; the version is added."""


class Marked(ScriptedEngine):
    """Answers with its own token plus the version, and waits if told to."""

    def __init__(self, token: int) -> None:
        self.go = threading.Event()
        self.go.set()
        self.begun = threading.Event()
        self.token, self.versions = token, {"": 0}
        super().__init__(self._marked)

    def _marked(self, request):
        self.begun.set()
        assert self.go.wait(60.0)
        return [self.token + (request.policy_version or self.versions[request.policy])]

    def publish(self, policy, version, weights, *, let_finish=False):
        self.versions[policy] = version
        return super().publish(policy, version, weights, let_finish=let_finish)


def weights(seed: int = 0) -> AdapterWeights:
    return AdapterWeights(rank=1, alpha=1.0, tensors={"x": torch.full((3,), float(seed))})


def requests(count: int, policy: str = "", session: str = "", version: int | None = None, prompt: int = 1):
    return [
        SampleRequest(
            request_id=f"r{number}",
            policy=policy,
            policy_version=version,
            prompt_ids=[prompt, number],
            max_tokens=1,
            session_id=f"{session}{number}" if session else "",
        )
        for number in range(count)
    ]


def by_engine(answers) -> Counter:
    assert all(isinstance(answer, Completion) for answer in answers.values()), answers
    return Counter(answer.token_ids[0] // 100 * 100 for answer in answers.values())


@pytest.fixture
def fleet(tmp_path):
    fleet = Fleet(Marked(OWN), tmp_path)
    for token in (FIRST, SECOND):
        fleet.add(Marked(token))
    yield fleet
    for host in fleet.hosts:
        host.engine.go.set()
    fleet.close()


def ask(fleet, asked) -> dict:
    return Asked(fleet.engine, asked).wait(60.0)


def test_spreads_requests_over_all_engines(fleet):
    assert by_engine(ask(fleet, requests(12))) == {OWN: 4, FIRST: 4, SECOND: 4}


def test_samples_each_version_where_it_is(fleet):
    for version in (1, 2):
        fleet.engine.publish("p", version, weights(version))
        answers = ask(fleet, requests(9, "p"))
        assert {answer.token_ids[0] % 100 for answer in answers.values()} == {version}
        assert {answer.policy_version for answer in answers.values()} == {version}
        assert set(by_engine(answers)) == {OWN, FIRST, SECOND}


def test_holds_policies_of_several_tenants_on_every_engine(fleet):
    for number, policy in enumerate(("p", "q", "r"), 1):
        fleet.engine.publish(policy, number, weights(number))
    asked = [one for policy in ("p", "q", "r") for one in requests(6, policy, session=policy)]
    unique = [one.model_copy(update={"request_id": str(n)}) for n, one in enumerate(asked)]
    answers = ask(fleet, unique)
    versions = [answers[str(n)].token_ids[0] % 100 for n in range(18)]
    assert versions == [1] * 6 + [2] * 6 + [3] * 6
    assert set(by_engine(answers)) == {OWN, FIRST, SECOND}


def test_answers_all_turns_of_a_session_on_one_engine(fleet):
    seen: dict[int, set[int]] = {}
    for turn in range(4):
        answers = ask(fleet, requests(6, session="s", prompt=turn + 1))
        for number in range(6):
            seen.setdefault(number, set()).add(answers[f"r{number}"].token_ids[0])
    assert all(len(tokens) == 1 for tokens in seen.values())
    assert len(set.union(*seen.values())) == 3


def test_samples_reproducible_batches_on_the_own_engine(fleet):
    assert {one.token_ids[0] for one in fleet.engine.generate_together(requests(6))} == {OWN}


def test_asks_a_dead_engines_requests_elsewhere(fleet):
    doomed = fleet.hosts[0]
    doomed.engine.go.clear()
    asked = Asked(fleet.engine, requests(12))
    assert doomed.engine.begun.wait(60.0)
    doomed.endpoint.close()
    answers = asked.wait(60.0)
    assert by_engine(answers).keys() == {OWN, SECOND}
    assert len(answers) == 12
    assert [replica.engine_id for replica in fleet.engine.replicas()] == ["engine-1"]


def test_asks_a_silent_engines_requests_elsewhere(tmp_path):
    now = [0.0]
    fleet = Fleet(Marked(OWN), tmp_path, silent_after=10.0, clock=lambda: now[0])
    silent = fleet.add(Marked(FIRST))
    silent.engine.go.clear()
    asked = Asked(fleet.engine, requests(4))
    assert silent.engine.begun.wait(60.0)
    now[0] = 11.0
    answers = asked.wait(60.0)
    assert by_engine(answers) == {OWN: 4}
    assert fleet.engine.replicas() == []
    silent.engine.go.set()
    fleet.engine.join(silent.joins)
    assert by_engine(ask(fleet, requests(4))) == {OWN: 2, FIRST: 2}
    fleet.close()


def test_lets_a_late_engine_catch_up(fleet, tmp_path):
    fleet.engine.publish("p", 1, weights(1))
    fleet.engine.publish("p", 2, weights(2))
    late = fleet.add(Marked(400))
    fleet.wait_until_held("p", 2)
    assert 400 in by_engine(ask(fleet, requests(12, "p")))
    assert late.engine.loaded() == {"p": 2}


def test_retires_policies_everywhere(fleet):
    fleet.engine.publish("p", 1, weights(1))
    fleet.engine.retire("p")
    fleet.engine.publish("q", 1, weights(2))
    answers = ask(fleet, requests(6, "p"))
    assert all(isinstance(answer, SampleFailure) for answer in answers.values())
    fleet.wait_until_held("q", 1)


def test_retires_what_ended_while_an_engine_was_unreachable(tmp_path):
    now = [0.0]
    fleet = Fleet(Marked(OWN), tmp_path, silent_after=10.0, clock=lambda: now[0])
    host = fleet.add(Marked(FIRST))
    fleet.engine.publish("p", 1, weights(1))
    fleet.engine.publish("q", 1, weights(2))
    fleet.wait_until_held("q", 1)
    host.engine.go.clear()
    asked = Asked(fleet.engine, requests(4, "q"))
    assert host.engine.begun.wait(60.0)
    now[0] = 11.0
    assert by_engine(asked.wait(60.0)) == {OWN: 4}
    host.engine.go.set()
    fleet.engine.retire("p")
    fleet.engine.join(host.joins)
    assert fleet.engine.wait_until_held("p", None, 120.0)
    assert host.engine.loaded() == {"q": 1}
    assert host.hosted.held.keys() == {"q"}
    fleet.close()


def test_uses_only_its_own_engine_while_sources_fail(fleet):
    def read(wanted):
        raise ServiceUnavailableError("the disk hangs")

    fleet.engine.publish("p", 1, weights(1))
    for replica in fleet.engine.replicas():
        replica.is_behind = True
    fleet.source.read = read
    fleet.engine.publish("p", 2, weights(2))
    answers = ask(fleet, requests(6, "p"))
    assert by_engine(answers) == {OWN: 6}
    assert {answer.policy_version for answer in answers.values()} == {2}
    fleet.source.read = fleet.engine.read_weights
    fleet.wait_until_held("p", 2)
    assert set(by_engine(ask(fleet, requests(9, "p")))) == {OWN, FIRST, SECOND}


@pytest.mark.parametrize("let_finish", [False, True])
def test_ends_unanswered_requests_for_a_replaced_version_as_asked(fleet, let_finish):
    fleet.engine.publish("p", 1, weights(1))
    slow = fleet.hosts[0].engine
    slow.go.clear()
    asked = Asked(fleet.engine, requests(3, "p", version=1))
    assert slow.begun.wait(60.0)
    fleet.engine.publish("p", 2, weights(2), let_finish=let_finish)
    slow.go.set()
    answers = asked.wait(60.0)
    assert len(answers) == 3
    failed = [answer for answer in answers.values() if isinstance(answer, SampleFailure)]
    assert {answer.error.code for answer in failed} <= {PolicyVersionGoneError("").code}
    assert bool(failed) is not let_finish


def test_counts_no_requests_of_callers_that_left(fleet):
    class Deliver:
        gone = False

        def __call__(self, answers):
            pass

    for host in fleet.hosts:
        host.engine.go.clear()
    deliver = Deliver()
    fleet.engine.submit(requests(30), deliver)
    assert all(host.engine.begun.wait(60.0) for host in fleet.hosts)
    deliver.gone = True
    for host in fleet.hosts:
        host.engine.go.set()
    assert by_engine(ask(fleet, requests(12))) == {OWN: 4, FIRST: 4, SECOND: 4}


def test_lets_all_engines_sleep(fleet):
    assert fleet.engine.sleep()
    assert all(host.engine.asleep for host in fleet.hosts)
    fleet.hosts[0].endpoint.close()
    assert fleet.engine.sleep()
