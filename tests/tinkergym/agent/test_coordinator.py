from __future__ import annotations

import numpy as np
import pytest

from tinkergym.agent.agent_loop import AgentLoop, AgentState
from tinkergym.agent.coordinator import Coordinator, Position, Standing
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import EpisodeProtocolError, InternalServiceError
from tinkergym.registration.games import make_game, registered_games
from tinkergym.rollout.game_table import GameTable
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.sampling import Completion
from tinkergym.testing import byte_bundle
from tinkergym.trajectory.trajectory import FAILED_REASONS, StopReason

RENDERER = Renderer.from_bundle(byte_bundle(context_length=10**6))


def seats(*agents, **settings):
    plans = [
        EpisodePlan(
            episode_id="e", seed=0, policy=agent, agent=agent, seat=n, decoding=Decoding(max_turn_tokens=400)
        )
        for n, agent in enumerate(agents)
    ]
    return Coordinator({plan.agent: AgentLoop(RENDERER, plan) for plan in plans}, **settings)


def standing(agent, reward=0.0, *, over=False, text="go on"):
    return Standing(agent=agent, observation=text, reward=reward, terminated=over, truncated=False, info={})


def position(turn=None, *ended, agents=("x", "o"), **owed):
    return Position(agents=agents, ended=ended, turn=turn, owed=owed)


def answer(request, text="a"):
    ids = RENDERER.encode_answer(text)
    return Completion(
        request_id=request.request_id,
        token_ids=ids,
        sampling_logprobs=[-0.5] * len(ids),
        finish_reason="stop",
        policy_version=0,
    )


def records(coordinator):
    return {one.agent: one for one in coordinator.trajectories()}


def test_credits_pay_during_anothers_turn_to_own_last_action():
    game = seats("x", "o")
    game.receive(answer(game.begin(position(standing("x")))))
    game.receive(answer(game.stepped(position(standing("o", -1.0)))))
    # While `o` moved, `x` was paid 2 for what it had done before.
    game.receive(answer(game.stepped(position(standing("x", 2.0)))))
    assert game.stepped(position(None, standing("x", 0.5, over=True), standing("o", 4.0, over=True))) is None
    found = records(game)
    assert [turn.reward for turn in found["x"].turns] == [2.0, 0.5]
    assert [turn.reward for turn in found["o"].turns] == [4.0]
    assert (found["o"].early_reward, found["o"].episode_return) == (-1.0, 3.0)
    assert {one.stop_reason for one in found.values()} == {StopReason.TERMINATED}


@pytest.mark.parametrize("told", [True, False])
def test_keeps_reward_of_seat_that_never_acted_without_learning(told):
    game = seats("x", "o")
    game.receive(answer(game.begin(position(standing("x")))))
    ended = [standing("x", 1.0, over=True), standing("o", -1.0, over=True)]
    assert game.stepped(position(None, *ended[: 1 + told], **({} if told else {"o": -1.0}))) is None
    found = records(game)["o"]
    assert (found.turns, found.segments, found.episode_return) == ([], [], -1.0)
    assert (found.stop_reason, found.terminated, found.completed) == (StopReason.TERMINATED, True, True)


@pytest.mark.parametrize(
    ("second", "named"),
    [
        (position(standing("z")), "'z'"),
        (position(standing("x"), standing("x", over=True)), "'x'"),
        (position(None, standing("x", over=True), standing("x", over=True)), "'x'"),
        (position(None), "x"),
    ],
)
def test_fails_game_for_all_when_it_breaks_its_turns(second, named):
    game = seats("x", "o")
    game.receive(answer(game.begin(position(standing("x")))))
    assert game.stepped(second) is None
    assert game.stop_reason is StopReason.ENVIRONMENT_ERROR
    for one in game.trajectories():
        assert one.stop_reason in FAILED_REASONS
        assert named in one.error


@pytest.mark.parametrize("reward", [float("nan"), "much", None, 1e13])
@pytest.mark.parametrize("when", ["early", "turn", "end"])
def test_fails_seat_by_name_for_what_is_no_reward(reward, when):
    game = seats("x", "o")
    game.receive(answer(game.begin(position(standing("x")))))
    second = {
        "early": position(standing("o", reward)),
        "turn": position(standing("x", reward)),
        "end": position(standing("x"), standing("o", reward, over=True)),
    }[when]
    assert game.stepped(second) is None
    assert game.stop_reason is StopReason.INVALID_REWARD
    failed = "x" if when == "turn" else "o"
    assert {one.agent: one.stop_reason for one in game.trajectories()}[failed] is StopReason.INVALID_REWARD
    assert all(repr(failed) in one.error for one in game.trajectories())


def test_fails_episode_on_answer_to_another_request():
    game = seats("x", "o")
    request = game.begin(position(standing("x")))
    with pytest.raises(InternalServiceError):
        game.receive(answer(request).model_copy(update={"request_id": "another"}))
    assert game.state is AgentState.TERMINATED
    assert records(game)["o"].stop_reason is StopReason.SEAT_FAILED


def test_names_whose_turn_it_was_when_time_ran_out():
    game = seats("x", "o")
    game.receive(answer(game.begin(position(standing("x")))))
    game.stepped(position(standing("o"), x=0.25))
    game.fail(StopReason.EPISODE_TIMEOUT, "the time ran out")
    found = records(game)
    assert (found["x"].stop_reason, found["o"].stop_reason) == (
        StopReason.SEAT_FAILED,
        StopReason.GAME_TIMEOUT,
    )
    assert not any(one.completed for one in found.values())
    assert "'o'" in found["x"].error


def test_orders_stored_game_and_says_when_actions_were_made():
    seconds = iter([10.0, 11.0, 12.5, 13.0, 14.0])
    game = seats("x", "o", clock=lambda: next(seconds))
    request = game.begin(position(standing("x")))
    for agent in ("o", "o", "x", None):
        game.receive(answer(request))
        request = game.stepped(position(standing(agent)) if agent else position())
        if agent is None:
            break
    turns = {agent: [(turn.move, turn.seconds) for turn in one.turns] for agent, one in records(game).items()}
    assert turns == {"x": [(1, 1.0), (4, 4.0)], "o": [(2, 2.5), (3, 3.0)]}


def test_abandons_an_abandoned_episode_at_every_seat():
    game = seats("x", "o")
    game.receive(answer(game.begin(position(standing("x")))))
    game.fail(StopReason.ABANDONED, "reset")
    assert {one.stop_reason for one in game.trajectories()} == {StopReason.ABANDONED}


def test_rejects_calls_out_of_order():
    game = seats("x", "o")
    for call in (lambda: game.stepped(position(standing("x"))), game.trajectories):
        with pytest.raises(EpisodeProtocolError):
            call()
    game.begin(position(standing("x")))
    for call in (lambda: game.begin(position(standing("x"))), lambda: game.stepped(position())):
        with pytest.raises(EpisodeProtocolError):
            call()


def random_game(env_id, seed):
    """Play a shipped game by random legal moves; return its own account and the seats' records."""
    rng = np.random.default_rng(seed)
    game = make_game(env_id)
    table, account = GameTable(game), dict.fromkeys(game.possible_agents, 0.0)
    coordinator = seats(*game.possible_agents)
    request = coordinator.begin(table.reset(seed=seed))
    while request is not None:
        legal = game.unwrapped.legal_actions(coordinator.acting) or ["pass"]
        # Now and then something that is no move.
        move = str(rng.choice(legal)) if rng.random() < 0.98 else "?"
        coordinator.receive(answer(request, move))
        original, paid = game.step, {}

        def step(action, original=original, paid=paid):
            original(action)
            if action is not None:
                paid.update(game.rewards)

        game.step = step
        request = coordinator.stepped(table.step(move))
        game.step = original
        for agent, reward in paid.items():
            account[agent] += reward
    return account, records(coordinator)


def text_games():
    return [name for name in registered_games() if name.startswith(("board/", "games/", "math/", "bandit/"))]


@pytest.mark.parametrize("env_id", text_games())
def test_pays_seats_of_shipped_game_what_the_game_paid(env_id):
    for seed in range(10):
        account, found = random_game(env_id, seed)
        assert {agent: one.episode_return for agent, one in found.items()} == pytest.approx(account, abs=0)
        assert {one.stop_reason for one in found.values()} <= {StopReason.TERMINATED, StopReason.TRUNCATED}
