"""What programs may ask a session: chat, streams, responses, rewards."""

import json
import threading

import httpx
import pytest

from tests.tinkergym.recording.sessions import (
    BODY,
    RENDERER,
    Remembering,
    plan_of,
    played,
    posted,
    said,
    streaming,
    trained,
    user,
)
from tinkergym.errors import InvalidImageError
from tinkergym.recording.program_replies import begun
from tinkergym.recording.recorded_session import RecordedSession
from tinkergym.testing.samplers import parts_of


class HalfSampler(Remembering):
    """Delivers what is sampled, but for the last token, and the rest when it is told to."""

    def __init__(self, change=lambda whole: whole):
        super().__init__()
        self.may_end, self.has_ended, self.change = threading.Event(), threading.Event(), change

    def submit(self, requests, deliver):
        def finish():
            self.may_end.wait(60)
            deliver([self.change(one) for one in found])
            self.has_ended.set()

        found = [self._complete(request) for request in requests]
        if requests[0].stream:
            for part in parts_of(found[0]):
                deliver.parts([part])
        threading.Thread(target=finish).start()


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
            answer = httpx.post(
                session.reward_url, content=reward, headers=headers, trust_env=False, verify=False
            )
            assert answer.status_code == status, answer.text
        return session.posted_reward(0.0) + 1

    assert played(post)["agent"].episode_return == 0.25


@pytest.mark.parametrize(("path", "text"), [("chat/completions", "messages"), ("responses", "input")])
def test_streams_tokens_while_the_rest_is_sampled(path, text):
    sampler = HalfSampler()

    def watch(session):
        with streaming(session, {"model": "any", text: [user("a")]}, path=path) as stream:
            lines = (line for line in stream.iter_lines() if "delta" in line)
            early = [next(lines) for _ in range(4)]
            sampler.may_end.set()
            return float(len(early) + len(list(lines)))

    record = played(watch, sampler=sampler)["agent"]
    assert record.episode_return > 4, record.error
    assert trained(record) == [ids for _, ids in sampler.sampled.values()]


def test_keeps_an_answer_whose_stream_was_broken_off():
    def broken_off(*, is_repeated):
        sampler = HalfSampler()

        def break_off(session):
            with streaming(session, BODY) as stream:
                next(stream.iter_lines())
            sampler.may_end.set()
            assert sampler.has_ended.wait(60)
            if is_repeated:
                assert posted(session, BODY | {"stream": True}, retry=1).status_code == 200
            said(session, user("b"))
            return 1.0

        return played(break_off, sampler=sampler)["agent"], sampler

    record, sampler = broken_off(is_repeated=False)
    assert (len(record.turns), len(sampler.sampled)) == (1, 2)
    assert record.turns[0].metrics["untrained_answers/interrupted"] == 1
    again, _ = broken_off(is_repeated=True)
    assert (len(again.turns), again.turns[-1].metrics["untrained_answers"]) == (2, 0)


def test_drops_parts_at_the_end_though_readers_are_behind():
    sampler = HalfSampler()
    session = RecordedSession(plan_of(), lambda _: RENDERER, sampler, base_url="")
    body = json.dumps(BODY | {"stream": True, "logprobs": True}).encode()
    slow, again = (begun(session, "agent", "chat/completions", body, repeats=n) for n in ("", "1"))
    assert slow.call is again.call
    behind = slow.chunks(lambda: False)
    first = next(behind)
    arrived = list(slow.call.parts)
    sampler.may_end.set()
    (whole,) = slow.call.wait()
    slow.call.add(arrived)
    assert (len(arrived), slow.call.parts, slow.call.was_streamed) == (11, [], True)
    streams = [[first, *behind], list(again.chunks(lambda: False))]
    assert len(streams[0]) > len(streams[1]) == 1
    for chunks in streams:
        lines = b"".join(chunks).decode().splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        choices = [choice for event in events for choice in event["choices"]]
        assert sum(len((one.get("logprobs") or {"content": []})["content"]) for one in choices) == 12
        text = "".join(one["delta"].get("content") or "" for one in choices)
        assert text == RENDERER.decode_answer(whole.token_ids)


def test_ends_stream_with_an_error_if_other_tokens_follow():
    sampler = HalfSampler(lambda whole: whole.model_copy(update={"token_ids": whole.token_ids[::-1]}))
    sampler.may_end.set()

    def look(session):
        with streaming(session, BODY) as stream:
            *_, last = [line for line in stream.iter_lines() if line]
        return float("error" in json.loads(last.removeprefix("data: ")))

    record = played(look, sampler=sampler)["agent"]
    assert (record.early_reward, record.turns) == (1.0, []), record.error


def test_takes_other_calls_while_an_image_is_checked():
    sampler = HalfSampler()
    sampler.may_end.set()
    session = RecordedSession(plan_of(), lambda _: RENDERER, sampler, base_url="")
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aW1n"}}
    with_image = json.dumps(BODY | {"messages": [{"role": "user", "content": [shown]}]}).encode()

    def begin(body, read_image=None):
        return begun(session, "agent", "chat/completions", body, read_image=read_image)

    def check(data):
        other = threading.Thread(target=begin, args=[json.dumps(BODY).encode()], daemon=True)
        other.start()
        other.join(120)
        raise InvalidImageError("ended" if not other.is_alive() else "waits")

    with pytest.raises(InvalidImageError, match="ended"):
        begin(with_image, check)
