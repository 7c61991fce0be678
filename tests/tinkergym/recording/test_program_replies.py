"""What programs may ask a session: chat, streams, responses, rewards."""

import json

import httpx

from tests.tinkergym.recording.sessions import BODY, played, posted, said, user


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
