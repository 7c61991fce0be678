"""Ids as text, and back."""

from __future__ import annotations

import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.ids import (
    AgentMetric,
    EpisodeId,
    JobRef,
    PolicyRef,
    SeatRef,
    WorkerRef,
    agent_version,
    is_job_id,
    is_policy_id,
    new_job_id,
    new_policy_id,
    policy_of,
)

WRITTEN = {
    "policy-1": PolicyRef(owner="policy-1"),
    "policy-1@40": PolicyRef(owner="policy-1", version=40),
    "job-1@40": PolicyRef(owner="job-1", version=40),
    "job-1/black@40": PolicyRef(owner="job-1", agent="black", version=40),
    "job-1/black": PolicyRef(owner="job-1", agent="black"),
    "job-1@step:40": PolicyRef(owner="job-1", step=40),
    "job-1@latest": PolicyRef(owner="job-1", name="latest"),
    "job-1@best": PolicyRef(owner="job-1", name="best"),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_reads_and_writes_reference_again(text):
    assert PolicyRef.parse(text) == WRITTEN[text]
    assert str(WRITTEN[text]) == text


@pytest.mark.parametrize(
    "text",
    [
        *["", "nano", "job-", "job-1@", "job-1@x", "job-1@-1", "job-1@1.5", "job-1@step:", "job-1@step:x"],
        *["job-1@1@2", "job-1/", "job-1/a/b", "policy-1/black", "job-1@40\n", "job-1 @4", f"job-1@{10**18}"],
    ],
)
def test_rejects_non_reference_with_the_setting_it_stood_in(text):
    with pytest.raises(InvalidRequestError) as caught:
        PolicyRef.parse(text, field="teacher")
    assert caught.value.field == "teacher"


def test_pins_a_version_in_place_of_name():
    assert str(PolicyRef.parse("job-1/black@latest").at(7)) == "job-1/black@7"
    assert str(PolicyRef.parse("policy-1@step:3").at(7)) == "policy-1@7"


@pytest.mark.parametrize(
    ("text", "newest"),
    [("job-1", True), ("job-1@latest", True)]
    + [(text, False) for text in ("job-1@best", "job-1@0", "job-1@step:0")],
)
def test_means_newest_only_by_reference_without_number(text, newest):
    assert PolicyRef.parse(text).is_newest is newest


def test_tells_models_from_references():
    assert [text for text in ("job-1", "policy-1@3", "nano", "org/job-1") if PolicyRef.is_meant(text)] == [
        "job-1",
        "policy-1@3",
    ]


@pytest.mark.parametrize("text", ["nano", "org/job-1", "job-1@x", ""])
def test_finds_no_policy_in_other_texts(text):
    assert PolicyRef.find(text) is None


def test_says_which_policies_a_reference_names():
    assert [text for text in WRITTEN if PolicyRef.parse(text).names_policy] == ["policy-1", "policy-1@40"]
    assert [text for text in WRITTEN if PolicyRef.parse(text).all_of_job] == [
        *("job-1@40", "job-1@step:40", "job-1@latest", "job-1@best")
    ]
    assert [text for text in WRITTEN if not PolicyRef.parse(text).has_version] == ["policy-1", "job-1/black"]


def test_names_the_policy_of_a_job_and_agent():
    assert (policy_of("job-1"), policy_of("job-1", "black")) == ("job-1", "job-1/black")
    assert policy_of("job-1", "black", version=0) == "job-1/black@0"
    assert (agent_version("black", 3), agent_version("", 3)) == ("black@3", "3")


IDS = {
    "job-1": JobRef("job-1"),
    "job-1/evaluate": JobRef("job-1", "evaluate"),
    "job-1:3:17": EpisodeId(JobRef("job-1"), 3, 17),
    "job-1/evaluate:3:17": EpisodeId(JobRef("job-1", "evaluate"), 3, 17),
    "": SeatRef(""),
    "lease": SeatRef("lease"),
    "lease.1": SeatRef("lease", 1),
    "lease.01": SeatRef("lease.01"),
    "ada/lease.12": SeatRef("lease", 12, owner="ada"),
    "ada/": SeatRef("", owner="ada"),
    "a%2Fb/lease": SeatRef("lease", owner="a/b"),
    "ada/x/y.1": SeatRef("x/y", 1, owner="ada"),
    "policy/black/loss": AgentMetric("policy", "black", "loss"),
    "seat/white/completions/mean_length": AgentMetric("seat", "white", "completions/mean_length"),
    "env/won": AgentMetric("", "", "env/won"),
    "step_seconds": AgentMetric("", "", "step_seconds"),
}


@pytest.mark.parametrize("text", IDS)
def test_parses_and_writes_each_id(text):
    assert type(IDS[text]).parse(text) == IDS[text]
    assert str(IDS[text]) == text


def test_takes_no_owner_from_a_clients_session():
    assert SeatRef.parse(SeatRef.prefix_of("ada") + "bob/lease") == SeatRef("bob/lease", owner="ada")
    assert SeatRef.parse("ada/bob/lease").owner == "ada"


@pytest.mark.parametrize("text", ["", "e", "job-1:3", "job-1:x:1", "job-1:1:x", ":1:1", "job-1:1:1\n"])
def test_refuses_ids_that_name_no_episode(text):
    assert EpisodeId.find(text) is None
    with pytest.raises(InvalidRequestError) as caught:
        EpisodeId.parse(text)
    assert caught.value.field == "episode_id"


def test_groups_episodes_of_one_step():
    one, two, later = (EpisodeId.parse(f"job-1:{place}") for place in ("1:0", "1:1", "2:0"))
    assert one.in_group(0) == two.in_group(0) != two.in_group(1)
    assert one.in_group(0) != later.in_group(0)


@pytest.mark.parametrize(
    ("text", "process"),
    [("client-ada-7-0a1b2c3d", "client-ada-7"), ("mine", "mine"), ("-x", "-x"), ("a-", "a-"), ("", "")],
)
def test_names_the_process_of_a_worker(text, process):
    assert (WorkerRef.parse(text).process, str(WorkerRef.parse(text))) == (process, text)


def test_makes_ids_that_say_what_they_are_of():
    job_id, policy_id = new_job_id(), new_policy_id()
    assert (is_job_id(job_id), is_policy_id(job_id)) == (True, False)
    assert (is_job_id(policy_id), is_policy_id(policy_id)) == (False, True)
    assert PolicyRef.parse(policy_id).names_policy
