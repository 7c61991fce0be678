from types import SimpleNamespace

from backend.engines.transformers.open_streams import OpenStreams
from tinkergym.schema.sampling import PromptScores, SampleRequest


class Taker:
    """Takes parts of completions."""

    def __init__(self):
        self.taken = []

    def parts(self, parts):
        self.taken += [(part.start, part.token_ids) for part in parts]


class State(SimpleNamespace):
    """A request that is being sampled."""

    __hash__ = object.__hash__


def state(taker, *, stream=True):
    request = SampleRequest(request_id="r", policy="", prompt_ids=[1, 2], max_tokens=9, stream=stream)
    policy = SimpleNamespace(version=0)
    lists = {"tokens": [1, 2], "logprobs": [], "likeliest": None}
    lists |= dict.fromkeys(PromptScores.model_fields)
    return State(request=request, policy=policy, deliver=taker, answer=None, **lists)


def sample(one, *tokens):
    one.tokens += tokens
    one.logprobs += [-1.0] * len(tokens)


def test_delivers_first_token_at_once_and_others_at_a_pace():
    now, taker = [100.0], Taker()
    streams = OpenStreams(clock=lambda: now[0])
    one, unstreamed = state(taker), state(taker, stream=False)
    streams.add([one, unstreamed])
    for token in (5, 6, 7):
        sample(one, token)
        sample(unstreamed, token)
        streams.deliver()
    assert taker.taken == [(0, [5])]
    now[0] += 1
    streams.deliver()
    assert taker.taken == [(0, [5]), (1, [6, 7])]


def test_leaves_the_rest_to_the_completion():
    taker = Taker()
    streams, one = OpenStreams(), state(taker)
    streams.add([one])
    sample(one, 5)
    one.answer = "whole"
    streams.deliver()
    assert (taker.taken, bool(streams)) == ([], False)
