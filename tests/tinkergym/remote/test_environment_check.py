import numpy as np
import pytest

import tinkergym as tg
from tinkergym.errors import (
    InvalidEnvironmentError,
    PromptTooLongError,
)
from tinkergym.messages import NOT_IN_WORDS


class Echo(tg.TextEnv):
    """Pays for the answer "ok", twice."""

    def start(self, options):
        self.turns = 0
        return f"Say ok {self.np_random.integers(10)}."

    def reply(self, action):
        self.turns += 1
        return "Again.", float(action == "ok"), self.turns == 2


def test_rejects_environment_that_cannot_reset_before_a_job_starts(service, client):
    class Broken(Echo):
        def start(self, options):
            raise KeyError("board")

    with pytest.raises(InvalidEnvironmentError) as caught:
        client.train(Broken, steps=1)
    assert caught.value.field == "environment"
    assert "POST /v1/jobs" not in service.calls


def test_keeps_hint_of_an_environments_own_error(service, client):
    class Lacking(Echo):
        def start(self, options):
            raise tg.errors.InvalidRequestError(
                "row 3 has no column 'answer'", hint="rename it", field="data"
            )

    with pytest.raises(InvalidEnvironmentError) as caught:
        client.train(Lacking, steps=1)
    assert caught.value.field == "environment"


def test_rejects_prompt_longer_than_context_before_a_job_starts(start_service, connect):
    service = start_service(context_length=64)

    class Wordy(Echo):
        def start(self, options):
            return "word " * 100

    with pytest.raises(PromptTooLongError):
        connect().train(Wordy, steps=1)
    assert "POST /v1/jobs" not in service.calls


def test_refuses_completion_that_does_not_fit_behind_the_prompt(start_service, connect):
    service = start_service(context_length=200)
    with pytest.raises(PromptTooLongError) as caught:
        connect().train(Echo, steps=1, sampling=tg.Sampling(max_turn_tokens=190))
    assert caught.value.field == "sampling.max_turn_tokens"
    with pytest.raises(PromptTooLongError) as caught:
        connect().train(Echo, steps=1, limits=tg.Limits(max_context_tokens=70))
    assert caught.value.field == "limits.max_context_tokens"
    assert "POST /v1/jobs" not in service.calls


class Unjudged(tg.SingleTurnEnv):
    def ask(self, options):
        return "?"


class Deaf(tg.TextEnv):
    def start(self, options):
        return "?"


@pytest.mark.parametrize(("env", "missing"), [(Unjudged, r"score\(answer\)"), (Deaf, r"reply\(action\)")])
def test_rejects_class_that_cannot_judge_answers_before_job_starts(client, service, env, missing):
    with pytest.raises(InvalidEnvironmentError, match=missing) as caught:
        client.train(env, steps=1)
    assert caught.value.field == "environment"
    assert service.jobs.newest_first() == []


class Late(Echo):
    def __init__(self, path, size=3):
        super().__init__()


def test_tells_how_to_give_an_argument_that_environment_lacks(client):
    with pytest.raises(InvalidEnvironmentError) as caught:
        client.train(Late, steps=1, env_kwargs={"size": 4})
    assert caught.value.hint == "it needs path, as in env_kwargs={'path': ...}"


class Sized(Echo):
    def __init__(self, size=3, opponent="random"):
        super().__init__()


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [({"sise": 4}, "sise: did you mean size?"), ({"zzz": 4}, "it takes size, opponent")],
)
def test_suggests_the_environment_argument_that_was_meant(client, kwargs, said):
    with pytest.raises(InvalidEnvironmentError) as caught:
        client.train(Sized, steps=1, env_kwargs=kwargs)
    assert said in caught.value.hint


def test_gives_one_hint_for_images_without_vision(client):
    class Picture(Echo):
        def start(self, options):
            return {"image": np.zeros((8, 8, 3), np.uint8), "text": "What is this?"}

    with pytest.raises(InvalidEnvironmentError) as caught:
        client.train(Picture, steps=1)
    assert caught.value.field == "environment"
    assert caught.value.hint == ""


def test_rejects_wordless_observation_with_what_turns_it_into_words(client):
    class Numbers(Echo):
        def start(self, options):
            return np.zeros(4)

    with pytest.raises(InvalidEnvironmentError) as caught:
        client.train(Numbers, steps=1)
    assert caught.value.hint == NOT_IN_WORDS
