"""Reward accounting of games: the totals of the seats' records, against the game's own account.

Random games are played through the same coordinator and agent loops as in training, many at once in random
order, with illegal moves among the legal ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.coordinator import Coordinator
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.registration.games import make_game
from tinkergym.rollout.game_table import GameTable
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.testing.bundles import byte_bundle

_CONTEXT = 200_000
_AT_ONCE = 16
_NONSENSE = ("", "zzz", "I resign", "9999")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountedGame:
    """One game: the returns by the game and by the records."""

    seed: int
    owed: Mapping[str, float]
    """By agent, rewards paid by the rules, recorded before any environment or coordinator."""
    recorded: Mapping[str, float]
    """By agent, the rewards of its turns and those before its first turn."""
    stop_reason: str

    @property
    def agrees(self) -> bool:
        """Whether the two are exactly equal."""
        return dict(self.owed) == dict(self.recorded)


@dataclass(slots=True)
class _Play:
    seed: int
    table: GameTable
    coordinator: Coordinator
    owed: dict[str, float]
    request: SampleRequest | None = None
    rng: np.random.Generator = field(default_factory=np.random.default_rng)


def play_accounted(
    game_id: str, seeds: Iterable[int], *, illegal_share: float = 0.05, **settings: Any
) -> list[AccountedGame]:
    """Play random games and account for them twice.

    Args:
        game_id: The id of a `TextGame`, from a pack or `register_game`.
        seeds: Seeds of the games and of the moves.
        illegal_share: The fraction of moves that are nonsense.
        settings: Settings of the game.
    """
    renderer = Renderer.from_bundle(byte_bundle(context_length=_CONTEXT))
    waiting = list(seeds)
    playing: list[_Play] = []
    done: list[AccountedGame] = []
    order = np.random.default_rng(len(waiting))
    while waiting or playing:
        while waiting and len(playing) < _AT_ONCE:
            playing.append(_begin(game_id, waiting.pop(0), renderer, settings))
        # A randomly drawn game advances by one move while the others wait.
        one = playing[int(order.integers(len(playing)))]
        if one.request is not None:
            _go_on(one, renderer, illegal_share)
        if one.request is None:
            playing.remove(one)
            done.append(_closed(one))
    return sorted(done, key=lambda game: game.seed)


def _begin(game_id: str, seed: int, renderer: Renderer, settings: Mapping[str, Any]) -> _Play:
    table = GameTable(make_game(game_id, **settings))
    owed = dict.fromkeys(table.agents, 0.0)
    _keep_book(table.unwrapped.game, owed)
    plans = {
        agent: EpisodePlan(episode_id=f"{seed}", seed=seed, policy="random", agent=agent, seat=number)
        for number, agent in enumerate(table.agents)
    }
    coordinator = Coordinator({agent: AgentLoop(renderer, plan) for agent, plan in plans.items()})
    one = _Play(seed, table, coordinator, owed, rng=np.random.default_rng([seed, 11]))
    one.request = coordinator.begin(table.reset(seed=seed))
    return one


def _go_on(one: _Play, renderer: Renderer, illegal_share: float) -> None:
    assert one.request is not None
    legal = one.table.unwrapped.legal_actions(one.coordinator.acting)
    if one.rng.random() < illegal_share:
        action = _NONSENSE[int(one.rng.integers(len(_NONSENSE)))]
    else:
        action = legal[int(one.rng.integers(len(legal)))]
    ids = renderer.encode_answer(action)
    completion = Completion(
        request_id=one.request.request_id,
        token_ids=ids,
        sampling_logprobs=[0.0] * len(ids),
        finish_reason="stop",
        policy_version=0,
    )
    one.request = one.coordinator.stepped(one.table.step(one.coordinator.receive(completion)))


def _closed(one: _Play) -> AccountedGame:
    records = one.coordinator.trajectories()
    one.table.close()
    return AccountedGame(
        seed=one.seed,
        owed=one.owed,
        recorded={str(record.agent): record.episode_return for record in records},
        stop_reason=str(one.coordinator.stop_reason),
    )


def _keep_book(game: Any, owed: dict[str, float]) -> None:
    """Record what the rules pay: in `give`, which `eliminate` uses, and at the end."""
    agents = list(owed)
    give, payoff = game.give, game.payoff

    def noted_give(player: int, reward: float) -> None:
        give(player, reward)
        owed[agents[player]] += reward

    def noted_payoff(outcome: Any, player: int) -> list[float]:
        paid: list[float] = payoff(outcome, player)
        for agent, reward in zip(agents, paid, strict=True):
            owed[agent] += reward
        return paid

    game.give, game.payoff = noted_give, noted_payoff
