"""Random programs: trees of calls with retries, forks, parallel calls, edits, lost thoughts and answers."""

import json
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from tests.tinkergym.recording.sessions import RENDERER, plan_of, played, posted, streaming, user
from tinkergym.testing.samplers import RandomTokenSampler


class Noting(RandomTokenSampler):
    """Random tokens, sometimes after a thought; remembers them by request."""

    def __init__(self):
        super().__init__(256)
        self.sampled = {}

    def _complete(self, request):
        found = super()._complete(request)
        if request.seed % 3 == 0 and request.max_tokens > 30:
            thought = RENDERER.encode_answer("<think>a b</think>\n\nyes")
            found = found.model_copy(
                update={"token_ids": thought, "sampling_logprobs": [-1.0] * len(thought)}
            )
        self.sampled[request.request_id] = (list(request.prompt_ids), list(found.token_ids))
        return found


class Walk:
    """One random program."""

    def __init__(self, seed):
        self.random, self.unseen = random.Random(seed), 0

    def __call__(self, session):
        self.session = session
        talks = [[user("a")]]
        self.go_on(talks, talks[0])
        for _ in range(self.random.randint(1, 6)):
            talk = self.random.choice(talks)
            getattr(
                self,
                self.random.choice(["go_on", "go_on", "fork", "spread", "edit", "choose", "lose", "leave"]),
            )(talks, talk)
        return 1.0

    def ask(self, talk, **settings):
        body = {"model": "any", "messages": talk, **settings}
        if not settings and self.random.random() < 0.3:
            return [{"role": "assistant", "content": self.streamed(body)}]
        response = posted(self.session, body)
        assert response.status_code == 200, response.text
        if self.random.random() < 0.2:
            again = posted(self.session, body, retry=1)
            assert again.json()["choices"] == response.json()["choices"]
        return [choice["message"] for choice in response.json()["choices"]]

    def answer(self, talk, **settings):
        (message,) = self.ask(talk, **settings)
        if self.random.random() < 0.3 and "</think>" in message["content"]:
            message = {**message, "content": message["content"].partition("</think>")[2].strip()}
        return message

    def go_on(self, talks, talk):
        talks[talks.index(talk)] = [*talk, self.answer(talk), user(self.word())]

    def fork(self, talks, talk):
        talks.append([*talk, self.answer(talk), user(self.word())])

    def spread(self, talks, talk):
        with ThreadPoolExecutor(3) as pool:
            bodies = [[*talk[:-1], user(self.word())] for _ in range(3)]
            found = list(
                pool.map(lambda one: posted(self.session, {"model": "any", "messages": one}), bodies)
            )
        talks += [
            [*body, one.json()["choices"][0]["message"], user("on")]
            for body, one in zip(bodies, found, strict=True)
        ]

    def edit(self, talks, talk):
        changed = [*talk]
        changed[self.random.randrange(len(talk))] = user(self.word())
        talks.append([*changed, self.answer(changed, **self.setting()), user("on")])

    def choose(self, talks, talk):
        talks.append([*talk, self.random.choice(self.ask(talk, n=3)), user(self.word())])

    def lose(self, talks, talk):
        """Hang up before the answer comes."""
        url = urlsplit(self.session.url())
        body = b'{"model": "any", "messages": [{"role": "user", "content": "lost"}]}'
        with socket.create_connection((url.hostname, url.port)) as line:
            head = (
                f"POST {url.path}/chat/completions HTTP/1.1\r\nauthorization: Bearer {self.session.key}\r\n"
            )
            line.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            line.shutdown(socket.SHUT_WR)
        self.unseen += 1

    def leave(self, talks, talk):
        """Hang up in the middle of a stream."""
        with streaming(self.session, {"model": "any", "messages": talk}) as stream:
            next(stream.iter_lines())

    def streamed(self, body):
        with streaming(self.session, body) as stream:
            lines = [line[6:] for line in stream.iter_lines() if line]
        assert lines.pop() == "[DONE]"
        return "".join(json.loads(one)["choices"][0]["delta"].get("content") or "" for one in lines)

    def setting(self):
        return self.random.choice([{}, {}, {"top_p": 0.9}, {"temperature": 0.5}, {"max_tokens": 3}])

    def word(self):
        return "".join(self.random.choices("xyz", k=4))


def check(seed):
    """Play one random program, and compare what is trained with what was sampled."""
    sampler = Noting()
    record = played(Walk(seed), plan_of(max_turn_tokens=40), sampler=sampler)["agent"]
    assert record.stop_reason == "terminated", record.error
    sampled = sorted(ids for _, ids in sampler.sampled.values())
    before = {tuple(ids): [] for ids in sampled}
    for prompt, ids in sampler.sampled.values():
        before[tuple(ids)].append(prompt)
    for turn in record.turns:
        tokens = record.segments[turn.segment].token_ids
        own = tuple(tokens[turn.start : turn.end])
        # What the policy is trained on is what it sampled, behind the prompt that it was sampled for.
        before[own].remove(tokens[: turn.start])
    assert sum(turn.end - turn.start for turn in record.turns) == record.sampled_tokens
    if record.turns:
        counted = record.turns[-1].metrics
        seen = len(record.turns) + counted["untrained_answers"]
        # What was being sampled when the program ended may have been sampled since.
        assert seen - counted.get("untrained_answers/unfinished", 0.0) <= len(sampled) <= seen
