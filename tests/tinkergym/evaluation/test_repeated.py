import pytest

import tinkergym as tg
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.repeated import evaluate_repeatedly
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import Limits
from tinkergym.testing import ScriptedSampler, byte_bundle


class Parity(tg.SingleTurnEnv):
    """Is the seed even?"""

    def ask(self, options):
        return f"{self.np_random_seed} even?"

    def score(self, answer):
        if answer == "broken":
            raise RuntimeError("out of order")
        return float(answer == ("no" if self.np_random_seed % 2 else "yes"))


class Scripted:
    """Answers in turn, whoever asks."""

    name, model, version, limits = "p", "bytes", None, Limits()
    system_prompt, reasoning, tools, decoding = None, "keep", None, Decoding(max_turn_tokens=16)

    def __init__(self, *answers):
        self.renderer = Renderer.from_bundle(byte_bundle())
        self._answers, self._asked = answers, 0

    def sampler(self):
        return ScriptedSampler(self.renderer, self._next)

    def _next(self, prompt):
        self._asked += 1
        return self._answers[(self._asked - 1) % len(self._answers)]


def test_plays_each_task_as_often_as_asked_from_same_start():
    scores = evaluate_repeatedly(Scripted("yes"), Parity, tasks=4, samples=3, seed=10)
    assert sorted(record.key for record in scores.records) == [
        (s, i) for s in range(10, 14) for i in range(3)
    ]
    assert scores.pass_at(3).mean == scores.pass_hat(3).mean == 0.5


def test_passes_at_k_but_not_hat_k_by_occasional_success():
    scores = evaluate_repeatedly(Scripted("yes", "no"), Parity, tasks=1, samples=4, max_concurrent=1)
    assert (scores.pass_at(4).mean, scores.pass_hat(4).mean) == (1.0, 0.0)


def test_tells_failed_episode_from_failure_of_the_policy():
    scores = evaluate_repeatedly(Scripted("yes", "broken"), Parity, tasks=1, samples=4, max_concurrent=1)
    assert (scores.failed, scores.pass_hat(2).mean) == (2, 1.0)


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"samples": 0}, "samples"), ({"tasks": 0}, "tasks"), ({"temperature": 0.0}, "samples")],
)
def test_rejects_settings_that_say_nothing(settings, field):
    with pytest.raises(InvalidRequestError) as refused:
        evaluate_repeatedly(Scripted("yes"), Parity, **settings)
    assert refused.value.field == field
