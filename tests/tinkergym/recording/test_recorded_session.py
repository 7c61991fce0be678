"""Programs as they are: their calls become the turns of their roles' seats, token for token."""

import concurrent.futures
import json
import sys
from pathlib import Path

import httpx
import pytest

from tests.tinkergym.recording.call_trees import check
from tests.tinkergym.recording.sessions import RENDERER, plan_of, played, posted, said, user
from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.renderer import Renderer
from tinkergym.recording.command_program import CommandProgram
from tinkergym.schema.jobs.parts import Limits
from tinkergym.testing.bundles import byte_bundle
from tinkergym.testing.faults import hangs_end
from tinkergym.testing.samplers import RandomTokenSampler, ScriptedSampler
from tinkergym.trajectory.trajectory import StopReason

NANO_TEMPLATE = Path("backend/models/nano-instruct/chat_template.jinja").read_text()
BODY = {"model": "any", "messages": [user("a")]}


class Remembering(RandomTokenSampler):
    """Remembers what it sampled, by prompt and seed."""

    def __init__(self):
        super().__init__(256)
        self.sampled = {}

    def _complete(self, request):
        found = super()._complete(request)
        self.sampled[request.request_id] = (list(request.prompt_ids), found.token_ids)
        return found


def talk(session, turns=3, role=""):
    messages = [user("hello")]
    for number in range(turns):
        messages += [said(session, *messages, role=role), user(f"more {number}")]
    return 1.0


def trained(record):
    return [record.segments[turn.segment].token_ids[turn.start : turn.end] for turn in record.turns]


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


def test_branches_where_histories_part_and_trains_shared_tokens_once():
    def fork(session):
        first = said(session, user("a"))
        said(session, user("a"), first, user("left"))
        said(session, user("a"), first, user("right"))
        said(session, user("another"))
        return 1.0

    record = played(fork)["agent"]
    assert [turn.segment for turn in record.turns] == [0, 0, 1, 2]
    shared = record.turns[0].end
    left, right, _ = record.segments
    assert left.token_ids[:shared] == right.token_ids[:shared]
    assert not any(right.loss_mask[:shared])
    assert sum(sum(one.loss_mask) for one in record.segments) == sum(map(len, trained(record)))
    assert [turn.move for turn in record.turns] == [1, 2, 3, 4]


def test_answers_parallel_calls_each_in_its_own_branch():
    def spread(session):
        first = said(session, user("a"))
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda k: said(session, user("a"), first, user(f"{k}")), range(4)))
        return float(len(found))

    record = played(spread)["agent"]
    assert (record.episode_return, len(record.turns), len(record.segments)) == (4.0, 5, 4)


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


def test_trains_only_on_the_choice_that_is_continued():
    def best_of(session):
        choices = posted(session, BODY | {"n": 3}).json()["choices"]
        said(session, user("a"), choices[1]["message"], user("b"))
        return 1.0

    sampler = Remembering()
    record = played(best_of, sampler=sampler)["agent"]
    sampled = [ids for _, ids in sampler.sampled.values()]
    assert trained(record) == [sampled[1], sampled[3]]
    assert record.turns[-1].metrics["untrained_answers/not_chosen"] == 2


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


def test_refuses_foreign_keys_unknown_roles_and_ended_sessions():
    kept = []

    def play_one(session):
        kept.append(session)
        said(session, user("a"))
        answers = [
            posted(session, BODY, key="guess"),
            posted(session, BODY, path="embeddings"),
            posted(session, {"model": "any"}),
        ]
        kept.append([(one.status_code, one.json()["error"]["code"]) for one in answers])
        return 1.0

    played(play_one)
    assert [status for status, _ in kept[1]] == [401, 404, 400]
    assert "key" not in repr(kept[0])


def test_draws_the_task_by_the_seed_of_the_session():
    drawn = []

    def note(session):
        drawn.append(session.task)
        return 1.0

    for _ in range(2):
        played(note, tasks=list("abcdef"))
    played(note, plan_of(task_index=3), tasks=list("abcdef"))
    assert drawn[0] == drawn[1] != drawn[2] == "d"


def test_offers_tools_and_reads_calls():
    nano_renderer = Renderer.from_bundle(byte_bundle(chat_template=NANO_TEMPLATE, context_length=4096))
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    texts = iter([call, "2"])
    sampler = ScriptedSampler(nano_renderer, lambda prompt: next(texts))
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]

    def add(session):
        answer = said(session, user("1+1"), tools=tools)
        (made,) = answer["tool_calls"]
        assert json.loads(made["function"]["arguments"]) == {"a": 1}
        result = {"role": "tool", "tool_call_id": made["id"], "content": "2"}
        said(session, user("1+1"), answer, result, tools=tools)
        return 1.0

    plan = plan_of(max_turn_tokens=200)
    record = played(add, plan, sampler=sampler, renderer=nano_renderer)["agent"]
    assert (record.stop_reason, len(record.segments)) == (StopReason.TERMINATED, 1), record.error


@pytest.mark.parametrize("seed", range(60))
def test_trains_on_sampled_tokens_once_in_random_call_trees(seed):
    check(seed)


@pytest.mark.full("plays 1,940 random programs: minutes")
def test_trains_on_sampled_tokens_once_in_two_thousand_call_trees():
    for seed in range(60, 2000):
        check(seed)


def test_streams_answers_and_serves_responses():
    def stream(session):
        whole = posted(session, BODY | {"stream": True, "stream_options": {"include_usage": True}})
        assert whole.headers["content-type"] == "text/event-stream"
        events = [line[6:] for line in whole.text.splitlines() if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        pieces = [json.loads(one) for one in events]
        text = "".join(c["delta"].get("content") or "" for one in pieces for c in one["choices"])
        said(session, user("a"), {"role": "assistant", "content": text}, user("b"))
        first = posted(session, {"model": "any", "input": "a"}, path="responses").json()
        again = [user("a"), *first["output"], user("b")]
        for streamed in (False, True):
            last = posted(session, {"model": "any", "input": again, "stream": streamed}, path="responses")
            assert last.status_code == 200, last.text
        return 1.0

    record = played(stream)["agent"]
    assert [turn.segment for turn in record.turns] == [0, 0, 1, 1, 2], record.error


def test_takes_the_posted_reward_and_refuses_others():
    def post(session):
        said(session, user("a"))
        headers = {"authorization": f"Bearer {session.key}"}
        for reward, status in (("NaN", 400), ('"a"', 400), ('{"critic": 1}', 400), ("0.25", 200), ("{", 400)):
            answer = httpx.post(session.reward_url, content=reward, headers=headers, trust_env=False)
            assert answer.status_code == status, answer.text
        return session.posted_reward(0.0) + 1

    assert played(post)["agent"].episode_return == 0.25


SCRIPT = """
import json, os, sys, urllib.request
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": os.environ["TINKERGYM_TASK"]}]})
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
key = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
urllib.request.urlopen(urllib.request.Request(url, body.encode(), key)).read()
print("done")
"""


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("print(0.5)", StopReason.TERMINATED),
        ("print('null')", StopReason.ABANDONED),
        ("", StopReason.INVALID_REWARD),
        ("sys.exit(3)", StopReason.ENVIRONMENT_ERROR),
    ],
)
def test_reads_the_reward_from_last_line_of_a_command(ending, reason):
    record = played(CommandProgram([sys.executable, "-c", SCRIPT + ending]), tasks=["Say hi"])["agent"]
    assert record.stop_reason is reason, record.error
    assert [turn.observation for turn in record.turns] == ["Say hi"]
