"""Checks of the interface: Gymnasium's own, valid text, arbitrary actions, JSON in info."""

from __future__ import annotations

import json
import math
import warnings
from contextlib import closing
from typing import Any

import gymnasium as gym
from gymnasium.utils.env_checker import check_env

from tinkergym.messages import observation_text
from tinkergym.testing.checks_subject import (
    SEEDS,
    AnyEnv,
    CheckFailedError,
    CheckSkippedError,
    Subject,
    TooSlowError,
    comparable,
    first_difference,
    time_limit,
)
from tinkergym.user_code.quoting import quoted

HOSTILE = {
    "an empty answer": "",
    "only white space": " \n\t\r ",
    "control characters": "\x00\x01\x07\x1b[31m\x7f\x85",
    "right-to-left text": "\u202eשלום \u200fمرحبا\u202c",
    "emoji": "👩🏽\u200d🚀🏳️\u200d🌈😀",
    "combining marks": "e" + "\u0301" * 40,
    "other digits": "٣ ² Ⅷ ½",
    "brackets and quotes": "{{[(<'\"`%s${x}\\",
    "a special token": "<|im_end|><|im_start|>system\n</s>",
    "an unfinished tool call": '<tool_call>{"name": "x", "arguments": ',
    "numbers at the edge": "-0 1e999 nan inf -1",
}
"""Answers that a model in training gives sooner or later."""

LARGE = {"letters": "a", "digits": "9", "opening brackets": "(", "lines": "x\n"}
_MEGABYTE = 1_000_000
_WORD = "hello"
"""An answer that is not a number, a move or JSON, on which most environments fail first."""
LARGE_SECONDS = 5.0
MOST_OBSERVATION_CHARACTERS = 100_000


def resets(subject: Subject) -> None:
    """It can be reset, and an environment then shows text."""
    with closing(subject.make()) as env:
        began: object = env.reset(seed=0)
        # A game returns nothing; Gymnasium's checker explains other invalid returns of an environment.
        if isinstance(began, tuple):
            _shown(began[0])


def steps(subject: Subject) -> None:
    """It can be stepped with text."""
    with closing(subject.make()) as env:
        env.reset(seed=0)
        env.step(_WORD)


def gymnasium_checker(subject: Subject) -> None:
    """Gymnasium's `check_env` passes with warnings as errors."""
    env = _without_gymnasiums_wrappers(subject.make())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # This is a wrapper of ours that is being tested, such as Verbalize, which defines the environment.
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version")
        # Rendering is skipped without a spec: a text environment need not have any.
        check_env(env, skip_render_check=env.spec is None)
    env.close()


def text(subject: Subject) -> None:
    """Observations are Unicode text within the observation space."""
    for seed in SEEDS:
        env = subject.make()
        for observation, *_ in subject.entries(env, seed):
            _readable(env, observation)
        env.close()


def hostile_text(subject: Subject) -> None:
    """Any Unicode text is accepted in any state: it may lower the reward, but it does not raise."""
    env = subject.make()
    if "\ud800" in env.action_space:
        raise CheckFailedError(
            "the action space contains a lone surrogate, which is not valid Unicode text",
            hint="use tinkergym.spaces.Text as the action space",
        )
    for what, action in HOSTILE.items():
        env.reset(seed=0)
        try:
            observation, *_ = env.step(action)
        except Exception as error:
            raise CheckFailedError(
                f"{what} as the answer ({action!a}) raises {type(error).__name__}: {quoted(error)}",
                hint="let a bad answer cost something instead; a model in training may give any answer",
            ) from error
        _readable(env, observation)
    env.close()


def large_action(subject: Subject) -> None:
    """An answer of a megabyte is handled in bounded time and not quoted in full."""
    env = subject.make()
    for what, unit in LARGE.items():
        env.reset(seed=0)
        action = unit * (_MEGABYTE // len(unit))
        try:
            with time_limit(LARGE_SECONDS):
                observation, *_ = env.step(action)
        except TooSlowError:
            raise CheckFailedError(
                f"an answer of one megabyte of {what} takes more than {LARGE_SECONDS:g} s",
                hint="only parse a bounded part of the answer, and avoid nested quantifiers in patterns",
            ) from None
        except Exception as error:
            raise CheckFailedError(
                f"an answer of one megabyte of {what} raises {type(error).__name__}: {quoted(error)}",
                hint="refuse long answers before they are parsed",
            ) from error
        length = len(_shown(observation))
        if length > MOST_OBSERVATION_CHARACTERS:
            raise CheckFailedError(
                f"an answer of one megabyte of {what} comes back as an observation of {length} characters",
                hint="quote only the beginning of an answer; the policy pays for every token",
            )
    env.close()


def json_info(subject: Subject) -> None:
    """`info`, `metadata` and the arguments are JSON, and metrics are finite numbers."""
    env = subject.make()
    _as_json(env.metadata, "metadata")
    if env.spec is not None:
        _as_json(env.spec.kwargs, "the environment's arguments")
    for seed in SEEDS:
        for entry in subject.entries(env, seed):
            info = entry[-1]
            if not isinstance(info, dict):
                raise CheckFailedError(
                    f"info is {type(info).__name__}, not a dict", hint="return a dict as info"
                )
            _as_json(info, "info")
            for name, value in (info.get("metrics") or {}).items():
                if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                    raise CheckFailedError(
                        f"info['metrics'][{name!r}] is {value!r}", hint="metrics are finite numbers"
                    )
    env.close()


def rebuilds(subject: Subject) -> None:
    """`gymnasium.make(env.spec)` gives the same environment, wrappers included."""
    env = subject.make()
    if env.spec is None:
        raise CheckSkippedError("it was created without a spec", hint="register it to have one")
    spec = env.spec
    if isinstance(spec.entry_point, str):
        # Through JSON, as a spec is sent to another process; a class has no such form.
        spec = gym.envs.registration.EnvSpec.from_json(spec.to_json())
    again: AnyEnv = gym.make(spec)
    for seed in SEEDS:
        here, there = subject.episode(env, seed), subject.episode(again, seed)
        if here != there:
            raise CheckFailedError(
                f"recreated from its spec, it plays differently {first_difference(here, there)}",
                hint="keep arguments in the spec: RecordConstructorArgs in wrappers, JSON values only",
            )
    again.close()
    env.close()


def closes_twice(subject: Subject) -> None:
    """`close` may be called twice, and before the first `reset`."""
    env = subject.make()
    env.reset(seed=0)
    env.close()
    env.close()
    untouched = subject.make()
    untouched.close()


def _without_gymnasiums_wrappers(env: AnyEnv) -> AnyEnv:
    # Added by `make`: it changes nothing that the checker tests, but the checker warns about it.
    while isinstance(env, gym.Wrapper) and type(env).__module__.startswith("gymnasium."):
        env = env.env
    return env


def _readable(env: AnyEnv, observation: Any) -> None:
    _shown(observation)
    if observation not in env.observation_space:
        raise CheckFailedError(
            f"an observation is not in {env.observation_space}: {quoted(comparable(observation))}",
            hint="make the space as wide as the observations",
        )


def _shown(observation: Any) -> str:
    try:
        return observation_text(observation)
    except (TypeError, ValueError) as error:
        raise CheckFailedError(
            str(error),
            hint="return text; tinkergym.wrappers.Verbalize converts classical observations to text",
        ) from error


def _as_json(value: Any, what: str) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckFailedError(
            f"{what} is not JSON: {error}: {quoted(value)}",
            hint="use only str, bool, int, finite float, list and dict with str keys",
        ) from error
    if not _keys_are_text(value):
        raise CheckFailedError(
            f"{what} has keys that are not text, which JSON would change: {quoted(value)}",
            hint="use str as keys",
        )


def _keys_are_text(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _keys_are_text(item) for key, item in value.items())
    return not isinstance(value, list | tuple) or all(map(_keys_are_text, value))
