"""Games with several seats, played to their end by the player."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tinkergym.rollout.random_games import HiddenMoves, RandomGame
from tinkergym.agent.renderer import Renderer
from tinkergym.registration.games import make_game
from tinkergym.rollout.executors import InlineExecutor, ProcessExecutor, ThreadExecutor
from tinkergym.rollout.play_list import play
from tinkergym.schema.episodes import EpisodeRequest, SeatPlan
from tinkergym.schema.events import ErrorView
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits, Sampling
from tinkergym.schema.sampling import SampleFailure
from tinkergym.testing import RandomTokenSampler, byte_bundle
from tinkergym.trajectory.trajectory import COMPLETED_REASONS, FAILED_REASONS, StopReason

RENDERER = Renderer.from_bundle(byte_bundle())
QUICK = {"max_examples": 40, "deadline": None}


class Recorder(RandomTokenSampler):
    """Random tokens; remembers who asked in which order, and fails where it is told to."""

    def __init__(self, *, fails_at=-1):
        super().__init__(RENDERER.vocab_size)
        self.requests, self.fails_at = [], fails_at

    def submit(self, requests, deliver):
        answers = []
        for request in requests:
            self.requests.append(request)
            if len(self.requests) - 1 == self.fails_at:
                error = ErrorView(type="RuntimeError", message="no tokens")
                answers.append(SampleFailure(request_id=request.request_id, error=error))
            else:
                answers.append(self._complete(request))
        deliver(answers)


def request(agents, index=0, *, limits=None, environment="random", **changes):
    seats = {
        agent: SeatPlan(
            policy=f"of {agent}",
            policy_version=number,
            model="bytes",
            sampling_seed=1000 * index + 100 * number,
            sampling=Sampling(max_turn_tokens=3),
        )
        for number, agent in enumerate(agents)
    }
    return EpisodeRequest(
        job_id="j",
        episode_id=f"j:1:{index}",
        step=1,
        index=index,
        group=0,
        environment=EnvironmentRef(id=environment),
        seed=index,
        seats=seats,
        limits=limits or Limits(),
        lease_id=f"lease-{index}",
        lease_seconds=30,
        **changes,
    )


def played(make, requests, sampler=None, executor=None):
    found = play(
        requests,
        sampler=sampler or Recorder(),
        renderer=RENDERER,
        make_env=lambda reference: make(),
        executor=executor or InlineExecutor(),
    )
    return {result.episode_id: result for result in found}


def by_agent(result):
    return {one.agent: one for one in result.trajectories}


def earned(record):
    return sum(turn.reward for turn in record.turns) + record.early_reward


@settings(**QUICK)
@given(st.integers(0, 10**6), st.integers(2, 5), st.floats(0, 0.5))
def test_pays_each_seat_as_game_paid_and_keeps_turns(seed, players, leave):
    games, sampler = [], Recorder()
    asked = request([f"p{n}" for n in range(players)], seed)
    (result,) = played(lambda: RandomGame(players, leave=leave, played=games), [asked], sampler).values()
    (game,) = games
    records = by_agent(result)
    assert {agent: earned(one) for agent, one in records.items()} == game.account
    # The order of the game, of the requests for tokens, and of each seat's turns.
    assert [r.policy for r in sampler.requests] == [f"of {agent}" for agent, _ in game.order]
    for agent, record in records.items():
        assert [turn.action for turn in record.turns] == [said for who, said in game.order if who == agent]
        assert record.stop_reason in COMPLETED_REASONS
        assert record.terminated or record.truncated or not record.turns


@settings(**QUICK)
@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 5))
def test_makes_hidden_moves_in_any_order_and_pays_by_round(seed, players, rounds):
    games = []
    asked = request([f"p{n}" for n in range(players)], seed)
    (result,) = played(lambda: HiddenMoves(players, rounds, played=games), [asked]).values()
    records = by_agent(result)
    assert {agent: earned(one) for agent, one in records.items()} == games[0].account
    for agent, record in records.items():
        said = [action for who, action in games[0].order if who == agent]
        assert [turn.action for turn in record.turns] == said
        # Nobody saw a move of the round that is being played.
        assert [turn.observation for turn in record.turns] == [f"round {n}" for n in range(len(said))]


@settings(**QUICK)
@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(0, 9), st.booleans())
def test_ends_episode_for_all_seats_after_a_failure(seed, players, at, breaks):
    games = []
    asked = request([f"p{n}" for n in range(players)], seed)
    sampler = Recorder(fails_at=-1 if breaks else at)
    make = lambda: RandomGame(players, leave=0.0, broken_at=at if breaks else -1, played=games)  # noqa: E731
    (result,) = played(make, [asked], sampler).values()
    records = by_agent(result)
    acting = sampler.requests[at].policy.removeprefix("of ")
    reason = StopReason.ENVIRONMENT_ERROR if breaks else StopReason.SAMPLING_FAILED
    assert records[acting].stop_reason is reason
    for agent, record in records.items():
        assert record.stop_reason in FAILED_REASONS
        assert repr(acting) in record.error
        if agent != acting:
            assert record.stop_reason is StopReason.SEAT_FAILED
            assert [turn.void for turn in record.turns] == [False] * (len(record.turns) - 1) + [True] * bool(
                record.turns
            )
        else:
            assert not any(turn.void for turn in record.turns)


def test_fails_seat_that_left_before_another_failed():
    class Leaves(RandomGame):
        def step(self, action):
            super().step(action)
            if len(self.order) == 1 and len(self.agents) == 3:
                gone = next(agent for agent in self.agents if agent != self.order[0][0])
                self.terminations[gone] = True
                self._deads_step_first()

    asked = request(["p0", "p1", "p2"])
    make = lambda: Leaves(3, leave=0.0, late=False, broken_at=3)  # noqa: E731
    (result,) = played(make, [asked]).values()
    assert {one.stop_reason for one in result.trajectories} == {
        StopReason.ENVIRONMENT_ERROR,
        StopReason.SEAT_FAILED,
    }


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(max_turns=2), StopReason.TURN_LIMIT),
        (Limits(max_episode_tokens=5), StopReason.TOKEN_LIMIT),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_ends_game_for_all_at_seats_limit_and_keeps_earnings(limits, reason, seed):
    games = []
    asked = request(["p0", "p1", "p2"], seed, limits=limits)
    (result,) = played(lambda: RandomGame(3, leave=0.0, most=99, played=games), [asked]).values()
    records = by_agent(result)
    assert {agent: earned(one) for agent, one in records.items()} == games[0].account
    assert {one.stop_reason for one in records.values()} == {reason}
    assert all(one.truncated and not one.terminated for one in records.values())
    named = {one.error for one in records.values() if one.error}
    assert len(named) == 1
    assert reason.value in named.pop()


@pytest.mark.parametrize("seed", range(5))
def test_pays_once_hidden_moves_that_a_limit_cuts(seed):
    games = []
    asked = request(["p0", "p1", "p2"], seed, limits=Limits(max_turns=2))
    (result,) = played(lambda: HiddenMoves(3, 9, played=games), [asked]).values()
    assert {agent: earned(one) for agent, one in by_agent(result).items()} == games[0].account


def test_fails_game_and_names_seat_whose_prompt_outgrows_the_context():
    asked = request(["p0", "p1"], limits=Limits(max_context_tokens=60))
    (result,) = played(lambda: RandomGame(2, leave=0.0, most=99), [asked]).values()
    reasons = sorted(one.stop_reason.value for one in result.trajectories)
    assert reasons == ["context_overflow", "seat_failed"]
    full = next(one for one in result.trajectories if one.stop_reason is StopReason.CONTEXT_OVERFLOW)
    (other,) = (one for one in result.trajectories if one is not full)
    assert f"{full.agent!r} failed with context_overflow" in other.error


@pytest.mark.parametrize("agents", [["p0"], ["p0", "p1", "p2"], ["p0", "x"]])
def test_names_seats_that_are_not_the_games(agents):
    if len(agents) == 1:
        agents = ["p0", "p1", "p2", "p3"]
    (result,) = played(lambda: RandomGame(2), [request(agents)]).values()
    for one in result.trajectories:
        assert one.stop_reason is StopReason.ENVIRONMENT_ERROR
        assert "p0, p1" in one.error


def test_names_environment_without_seats():
    import gymnasium as gym

    (result,) = played(lambda: gym.make("bandit/Bandit-v0"), [request(["p0", "p1"])]).values()
    assert {one.stop_reason for one in result.trajectories} == {StopReason.ENVIRONMENT_ERROR}


@pytest.mark.parametrize(
    "executor",
    [
        pytest.param(ThreadExecutor, id="thread"),
        pytest.param(
            lambda: ProcessExecutor(2),
            id="process",
            marks=pytest.mark.full("as episodes in `test_executors`"),
        ),
    ],
)
def test_plays_game_alike_wherever_and_however_many_interleave(executor):
    requests = [
        request(["x", "o"], n, environment="board/TicTacToe-v0", limits=Limits(max_turns=9)) for n in range(6)
    ]
    found = [
        {
            result.episode_id: result
            for result in play(
                some,
                sampler=Recorder(),
                renderer=RENDERER,
                make_env=make_board,
                executor=where,
            )
        }
        for some, where in ((requests, executor()), (requests[::-1], InlineExecutor()))
    ]
    assert found[0] == found[1]
    for result in found[0].values():
        won = by_agent(result)
        assert earned(won["x"]) == -earned(won["o"])


def make_board(reference):
    return make_game(reference.id)


def test_replays_failed_game_from_its_start():
    asked = request(["p0", "p1"], retries=1)
    sampler = Recorder(fails_at=3)
    games = []
    (result,) = played(lambda: RandomGame(2, leave=0.0, played=games), [asked], sampler).values()
    assert len(games) == 2
    assert {one.retries for one in result.trajectories} == {1}
    assert {agent: earned(one) for agent, one in by_agent(result).items()} == games[1].account


def test_gives_each_seat_its_own_session_version_and_seeds():
    sampler = Recorder()
    played(lambda: RandomGame(2, leave=0.0), [request(["p0", "p1"])], sampler)
    first, second = ([r for r in sampler.requests if r.policy == f"of p{n}"] for n in range(2))
    assert ({r.session_id for r in first}, {r.session_id for r in second}) == ({"lease-0"}, {"lease-0.1"})
    assert ({r.policy_version for r in first}, {r.policy_version for r in second}) == ({0}, {1})
    assert [r.seed for r in second] == list(range(100, 100 + len(second)))
