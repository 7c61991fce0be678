"""Every installed environment passes every check, and each check catches an environment made to fail it."""

import itertools
import random

import gymnasium as gym
import numpy as np
import pytest

import tinkergym as tg
from tests.playable import can_play
from tests.tinkergym.testing.sound import Sound
from tinkergym.registration.environments import make
from tinkergym.registration.packs import find_packs
from tinkergym.testing.checks_subject import Subject
from tinkergym.testing.contract_checks import CHECKS, Outcome, run_checks

_calls = itertools.count()


# Of packs, not all that is registered: other tests register environments that are broken on purpose.
ENVIRONMENTS = sorted(name for pack in find_packs() for name in pack.environment_ids)


PACKS_OWN = {"androidworld", "classic", "dialogue", "games", "geometry", "tabletop"}
"""Packs whose own tests run these checks on each of their environments."""


def why_later(name):
    """Return why `make test` leaves out an environment; empty if it does not."""
    pack, game = name.split("/")
    if pack == "textarena" and not game.startswith(("Iterated", "Blackjack", "Kuhn", "Nim", "Secretary")):
        return "more games of the same pack"
    return "the tests of its pack check it" if pack in PACKS_OWN else ""


def results(make_env, only=None):
    """Return the results by name, of all checks or of one."""
    checks = [check for check in CHECKS if check.name == only] if only else None
    return {result.name: result for result in run_checks(Subject(make=make_env), checks)}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.full(reason)] if (reason := why_later(name)) else [])
        for name in filter(can_play, ENVIRONMENTS)
    ],
)
def test_passes_every_check_in_every_installed_environment(name):
    failed = [
        f"{result.name}: {result.message}"
        for result in results(lambda: make(name)).values()
        if result.outcome is Outcome.FAILED
    ]
    assert not failed


def test_passes_all_and_skips_none_for_sound_environment():
    tg.register("tests/Sound-v0", Sound)
    found = results(lambda: make("tests/Sound-v0"))
    assert {result.outcome for result in found.values()} == {Outcome.OK}


class NoObservationSpace(Sound):
    def __init__(self):
        self.observation_space = tg.spaces.Text(3)


class Surrogate(Sound):
    def reply(self, action):
        return "\ud800", 0.0, True


class NotText(gym.Env):
    observation_space, action_space = gym.spaces.Discrete(3), tg.spaces.Text()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 1, 0.0, True, False, {}


class RaisesOnEmpty(Sound):
    def reply(self, action):
        return super().reply(action[0])


class RaisesOnOtherDigits(Sound):
    def reply(self, action):
        if action.split(" ")[0].isdigit() or "²" in action:
            int("²")
        return super().reply(action)


class AcceptsSurrogates(Sound):
    def __init__(self):
        self.action_space = Anything()


class Anything(tg.spaces.Text):
    def contains(self, x):
        return isinstance(x, str)


class ReadsDigits(Sound):
    def reply(self, action):
        return super().reply(str(int(action)) if action.isdecimal() and action.isascii() else action)


class Echoes(Sound):
    def reply(self, action):
        _, *rest = super().reply(action)
        return f"You said {action}.", *rest


class Unseeded(Sound):
    def shown(self):
        self.number = next(_calls)
        return f"say {self.number}"


class RemembersBetweenEpisodes(Sound):
    games = 0

    def start(self, options):
        self.games += 1
        return f"game {self.games}\n{super().start(options)}"


class AlwaysTheSame(Sound):
    def shown(self):
        self.number = 7
        return "say 7"


class ReadsGlobalRandom(Sound):
    def shown(self):
        self.number = random.getrandbits(40)
        return f"say {self.number}"


class SeedsGlobalNumpy(Sound):
    def start(self, options):
        np.random.seed(int(self.np_random.integers(1000)))
        return super().start(options)


class SharedState(Sound):
    state = {"left": 0}  # noqa: RUF012 - the mistake that is to be caught

    def start(self, options):
        SharedState.state["left"] = 3
        return super().start(options)

    def reply(self, action):
        SharedState.state["left"] -= 1
        observation, reward, *_ = super().reply(action)
        return observation, reward, SharedState.state["left"] <= 0


class ClosesOthers(Sound):
    open = True

    def start(self, options):
        ClosesOthers.open = True
        return super().start(options)

    def reply(self, action):
        observation, *rest = super().reply(action)
        return observation + ("" if ClosesOthers.open else " (closed)"), *rest

    def close(self):
        ClosesOthers.open = False


class NoJson(Sound):
    def reply(self, action):
        observation, reward, over, _ = super().reply(action)
        return observation, reward, over, {"board": {1: "x"}}


class NanMetric(Sound):
    def reply(self, action):
        observation, reward, over, _ = super().reply(action)
        return observation, reward, over, {"metrics": {"right": None}}


class TellsTheHistory(Sound):
    def shown(self):
        self.told = getattr(self, "told", "") if self.left < 3 else "This is what has happened until now:\n"
        self.told += super().shown() + "\n"
        return self.told


class WrongGold(Sound):
    def gold_action(self):
        return str((self.number + 1) % 10)


class NoRewards(Sound):
    def reply(self, action):
        observation, _, over, info = super().reply(action)
        return observation, 0.0, over, info


class BelowItsBest(Sound):
    metadata = {**Sound.metadata, "best_return": 4.0}  # noqa: RUF012 - as Gymnasium declares it


class SaysSingle(Sound):
    metadata = {**Sound.metadata, "turns": "single", "data": "free"}  # noqa: RUF012 - as Gymnasium declares it


class SaysMulti(Sound):
    metadata = {**Sound.metadata, "turns": "multi", "data": "free"}  # noqa: RUF012 - as Gymnasium declares it

    def reply(self, action):
        observation, reward, _, info = super().reply(action)
        return observation, reward, True, info


class IgnoresTaskIndex(Sound):
    metadata = {**Sound.metadata, "turns": "multi", "data": "dependent"}  # noqa: RUF012 - as Gymnasium declares it


class NoSuchCell(Sound):
    metadata = {**Sound.metadata, "turns": "twice", "data": "free"}  # noqa: RUF012 - as Gymnasium declares it


class ClosesOnce(Sound):
    def close(self):
        del self.left


@pytest.mark.parametrize(
    ("environment", "check"),
    [
        (NoObservationSpace, "gymnasium"),
        (NoObservationSpace, "text"),
        (Surrogate, "text"),
        (NotText, "text"),
        (RaisesOnEmpty, "hostile text"),
        (RaisesOnOtherDigits, "hostile text"),
        (AcceptsSurrogates, "hostile text"),
        (ReadsDigits, "large action"),
        (Echoes, "large action"),
        (Unseeded, "same seed"),
        (RemembersBetweenEpisodes, "same seed"),
        (AlwaysTheSame, "different seeds"),
        (ReadsGlobalRandom, "global randomness"),
        (SeedsGlobalNumpy, "global randomness"),
        (ClosesOthers, "independent instances"),
        (SharedState, "interleaving"),
        (NoJson, "json"),
        (NanMetric, "json"),
        (TellsTheHistory, "deltas"),
        (WrongGold, "gold answer"),
        (NoRewards, "gold answer"),
        (BelowItsBest, "gold answer"),
        (SaysSingle, "grid cell"),
        (SaysMulti, "grid cell"),
        (IgnoresTaskIndex, "grid cell"),
        (NoSuchCell, "grid cell"),
        (ClosesOnce, "closes twice"),
    ],
)
def test_catches_environment_that_breaks_its_promise_by_each_check(environment, check):
    found = results(environment, check)[check]
    assert found.outcome is Outcome.FAILED
    assert found.message
    assert found.hint


def test_fails_one_check_for_environment_that_cannot_be_made():
    def make_env():
        raise RuntimeError("no such world")

    (found,) = results(make_env).values()
    assert (found.name, found.outcome) == ("make", Outcome.FAILED)
    assert "no such world" in found.message


class CannotBegin(Sound):
    def start(self, options):
        raise KeyError("tasks.jsonl")


class TakesNumbersOnly(Sound):
    def reply(self, action):
        return super().reply(str(int(action)))


@pytest.mark.parametrize(
    ("environment", "cause", "text"),
    [
        (CannotBegin, "reset", "KeyError: 'tasks.jsonl'"),
        (NotText, "reset", "an observation must be a str"),
        (TakesNumbersOnly, "step", "ValueError: invalid"),
    ],
)
def test_reports_cause_failing_every_check_as_one_failure(environment, cause, text):
    first, *others = results(environment).values()
    assert (first.name, first.outcome) == (cause, Outcome.FAILED)
    assert text in first.message
    assert first.hint
    assert [(result.name, result.outcome) for result in others] == [
        (check.name, Outcome.SKIPPED) for check in CHECKS
    ]
    assert {result.message for result in others} == {f"not run: {cause} failed"}


def test_closes_environment_that_fails_immediately_all_the_same():
    open_ones = set()

    class Counted(CannotBegin):
        def __init__(self):
            open_ones.add(id(self))

        def close(self):
            open_ones.remove(id(self))

    assert any(result.outcome is Outcome.FAILED for result in run_checks(Subject(make=Counted)))
    # The one that the checks are chosen by is the caller's.
    assert len(open_ones) <= 1


def test_leaves_the_global_generators_as_they_were():
    random.seed(3)
    np.random.seed(3)
    before = random.getstate(), str(np.random.get_state())
    results(Sound)
    assert (random.getstate(), str(np.random.get_state())) == before


def test_has_environment_here_that_each_check_catches():
    marks = test_catches_environment_that_breaks_its_promise_by_each_check.pytestmark
    caught = {check for _, check in marks[0].args[1]} | {"rebuilds from its spec"}
    assert caught == {check.name for check in CHECKS}
