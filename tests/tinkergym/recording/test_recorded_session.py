"""Programs as they are: their calls become the turns of their roles' seats, token for token."""

from dataclasses import replace

import pytest

from tests.tinkergym.recording.sessions import (
    BODY,
    RENDERER,
    Remembering,
    plan_of,
    played,
    posted,
    said,
    trained,
    user,
)
from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.schema.jobs.parts import Limits
from tinkergym.testing.faults import hangs_end
from tinkergym.testing.samplers import RandomTokenSampler, ScriptedSampler
from tinkergym.trajectory.trajectory import StopReason


def talk(session, turns=3, role=""):
    messages = [user("hello")]
    for number in range(turns):
        messages += [said(session, *messages, role=role), user(f"more {number}")]
    return 1.0


def test_records_conversation_as_one_segment_of_sampled_tokens():
    sampler = Remembering()
    record = played(talk, sampler=sampler)["agent"]
    (segment,) = record.segments
    sampled = list(sampler.sampled.values())
    assert [ids for _, ids in sampled] == trained(record)
    last_prompt, last_ids = sampled[-1]
    assert segment.token_ids == last_prompt + last_ids
    assert (record.stop_reason, record.episode_return) == (StopReason.TERMINATED, 1.0)


def test_samples_what_an_environment_of_same_task_samples():
    plan = plan_of()
    sampler = Remembering()
    record = played(talk, plan, sampler=sampler)["agent"]
    loop, own = AgentLoop(RENDERER, plan), RandomTokenSampler(256)
    request = loop.begin("hello")
    for number in range(3):
        loop.receive(own._complete(request))
        request = loop.stepped(f"more {number}", float(number == 2), number == 2, False)
    assert loop.trajectory().segments == record.segments


def test_pays_each_role_its_own_reward():
    def solve_and_judge(session):
        draft = said(session, user("solve"), role="solver")
        said(session, user(f"judge {draft['content']}"), role="critic")
        return {"solver": 1.0, "critic": -1.0}

    records = played(solve_and_judge, plan_of(("solver", "critic")))
    assert {role: one.episode_return for role, one in records.items()} == {"solver": 1.0, "critic": -1.0}
    assert [len(one.turns) for one in records.values()] == [1, 1]


def test_continues_an_answer_whose_thoughts_the_client_left_out():
    texts = iter(["<think>hm</think>\n\nyes", "no"])
    sampler = ScriptedSampler(RENDERER, lambda prompt: next(texts))

    def forget(session):
        said(session, user("a"))
        said(session, user("a"), {"role": "assistant", "content": "yes"}, user("b"))
        return 1.0

    record = played(forget, plan_of(max_turn_tokens=200), sampler=sampler)["agent"]
    assert (len(record.segments), len(record.turns)) == (1, 2)


def test_gives_repeated_call_the_stored_answer():
    sampler = Remembering()

    def repeat(session):
        body = {"model": "any", "messages": [user("a")]}
        first = posted(session, body).json()["choices"]
        again = posted(session, body, retry=1).json()["choices"]
        new = posted(session, body).json()["choices"]
        return float(first == again != new)

    record = played(repeat, sampler=sampler)["agent"]
    assert (record.episode_return, len(sampler.sampled), len(record.turns)) == (1.0, 2, 2)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"top_p": 0.5}, "top_p"),
        ({"top_k": 3}, "top_k"),
        ({"temperature": 0.2}, "temperature"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_counts_calls_that_cannot_be_trained_on(setting, reason):
    def mixed(session):
        first = said(session, user("a"), **setting)
        said(session, user("a"), first, user("b"))
        return 1.0

    record = played(mixed)["agent"]
    assert len(record.turns) == 1
    assert record.turns[-1].metrics[f"untrained_answers/{reason}"] == 1
    refused = []
    played(lambda session: refused.append(posted(session, BODY | setting)), strict=True)
    assert refused[0].status_code == 400
    assert refused[0].json()["error"]["param"] == reason


class PublishingSampler(RandomTokenSampler):
    """Samples by version 4 unless a request names another, and remembers the requests."""

    def __init__(self):
        super().__init__(256)
        self.asked = []

    def _complete(self, request):
        self.asked.append(request)
        version = 4 if request.policy_version is None else request.policy_version
        return super()._complete(request).model_copy(update={"policy_version": version})


@pytest.mark.parametrize("setting", [{"top_p": 0.5}, {"response_format": {"type": "json_object"}}])
def test_keeps_version_of_cut_answers_in_evaluations(setting):
    def mixed(session):
        said(session, user("a"), **setting)
        said(session, user("b"))
        return 1.0

    sampler, plan = PublishingSampler(), plan_of(policy_version=3, trained=False)
    record = played(mixed, plan, sampler=sampler)["agent"]
    assert [turn.policy_version for turn in record.turns] == [3, 3]
    assert [(one.policy_version, one.session_id) for one in sampler.asked] == [(3, plan.session_id)] * 2

    sampler, plan = PublishingSampler(), plan_of(policy_version=3)
    record = played(mixed, plan, sampler=sampler)["agent"]
    sent = [(one.policy_version, one.session_id) for one in sampler.asked]
    assert sent == [(None, ""), (3, plan.session_id)]
    assert record.turns[-1].metrics[f"untrained_answers/{next(iter(setting))}"] == 1


def test_sends_cut_answers_of_untrained_roles_without_session():
    sampler, plan = PublishingSampler(), replace(plan_of(("judge", "agent")), trained=False)

    def judge(session):
        said(session, user("a"), role="judge", top_p=0.5)
        said(session, user("a"), role="agent")
        return 1.0

    assert len(played(judge, plan, sampler=sampler)["judge"].turns) == 1
    assert [one.session_id for one in sampler.asked] == ["", plan.others[0].session_id]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda session: None, StopReason.ABANDONED),
        (lambda session: 1.0, StopReason.ENVIRONMENT_ERROR),
        (lambda session: talk(session) * float("nan"), StopReason.INVALID_REWARD),
        (lambda session: {"agent": talk(session), "critic": 1}, StopReason.INVALID_REWARD),
        (lambda session: {}, StopReason.INVALID_REWARD),
        (lambda session: "1.0", StopReason.INVALID_REWARD),
        (lambda session: session.task["a"], StopReason.ENVIRONMENT_ERROR),
        (lambda session: said(session, user("a"), top_p=0.5) and 1.0, StopReason.ENVIRONMENT_ERROR),
    ],
)
def test_names_how_programs_without_reward_end(program, reason):
    record = played(program)["agent"]
    assert record.stop_reason is reason
    assert record.error


def test_ends_program_that_runs_too_long(end_hangs):
    limits = Limits(episode_timeout_seconds=0.2)
    record = played(lambda session: hangs_end.wait(30), plan_of(limits=limits))["agent"]
    assert record.stop_reason is StopReason.ENVIRONMENT_TIMEOUT


def test_refuses_calls_beyond_limits():
    refused = []

    def endless(session):
        said(session, user("a"))
        refused.append(posted(session, {"model": "any", "messages": [user("a" * 80)]}))
        return 1.0

    for limits in (Limits(max_turns=1), Limits(max_episode_tokens=12), Limits(max_context_tokens=60)):
        record = played(endless, plan_of(limits=limits))["agent"]
        assert record.stop_reason is StopReason.TERMINATED, record.error
    codes = [response.json()["error"]["code"] for response in refused]
    assert codes == ["session_limit"] * 3
