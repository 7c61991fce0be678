"""What a model earns in our environments before any reinforcement learning, at temperature 1.

A plain loop that renders the whole conversation on every turn: too slow for training, but it shares no code
with the service and therefore checks it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import torch
from nano_dialogues import rendered
from nano_tokenizer import TURN_END, TURN_START
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from tinkergym.messages import Message, assistant, user

ENVIRONMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tic-tac-toe against random": ("board/TicTacToeVs-v0", {}),
    "gomoku 5x5, four in a row, against random": ("board/GomokuVs-v0", {"size": 5, "win": 4}),
    "arithmetic, test split": ("math/Arithmetic-v0", {"split": "test"}),
    "bandit": ("bandit/Bandit-v0", {}),
}
FIRST_SEED = 1_000_000
_LONGEST_ANSWER = 8  # tokens


@dataclass(frozen=True, slots=True)
class Score:
    """Mean return of a number of episodes, with its uncertainty."""

    mean: float
    half_interval: float
    """Half the width of the 95 % interval (normal approximation)."""
    episodes: int
    metrics: dict[str, float]
    """Means of the environment's other metrics."""

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.half_interval:.3f}"


@dataclass(slots=True)
class _Game:
    env: gym.Env[str, str]
    messages: list[Message] = field(default_factory=list)
    total: float = 0.0
    ended: bool = False
    metrics: dict[str, float] = field(default_factory=dict)


def scores(model: Qwen3ForCausalLM, tokenizer: Tokenizer, episodes: int) -> dict[str, Score]:
    """Play every environment on the same held-out seeds."""
    import tinkergym  # noqa: F401 - makes the packs known to gymnasium

    return {
        name: score(model, tokenizer, env_id, kwargs, episodes)
        for name, (env_id, kwargs) in ENVIRONMENTS.items()
    }


def score(
    model: Qwen3ForCausalLM, tokenizer: Tokenizer, env_id: str, kwargs: dict[str, Any], episodes: int
) -> Score:
    """Play `episodes` games side by side and return their rewards."""
    torch.manual_seed(0)
    games = []
    for number in range(episodes):
        game = _Game(gym.make(env_id, disable_env_checker=True, **kwargs))
        observation, _ = game.env.reset(seed=FIRST_SEED + number)
        game.messages.append(user(observation))
        games.append(game)
    while running := [game for game in games if not game.ended]:
        for game, action in zip(running, _answers(model, tokenizer, running), strict=True):
            observation, reward, terminated, truncated, info = game.env.step(action)
            game.total += float(reward)
            game.ended = terminated or truncated
            game.metrics = info.get("metrics", game.metrics)
            game.messages += [assistant(action), user(observation)]
    returns = torch.tensor([game.total for game in games])
    names = sorted({name for game in games for name in game.metrics})
    return Score(
        mean=float(returns.mean()),
        half_interval=1.96 * float(returns.std()) / math.sqrt(episodes),
        episodes=episodes,
        metrics={name: sum(game.metrics.get(name, 0.0) for game in games) / episodes for name in names},
    )


@torch.inference_mode()
def _answers(model: Qwen3ForCausalLM, tokenizer: Tokenizer, games: Sequence[_Game]) -> list[str]:
    stop = tokenizer.token_to_id(TURN_END)
    texts = [rendered(game.messages) + f"{TURN_START}assistant\n" for game in games]
    sequences = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    starts = [len(ids) for ids in sequences]
    open_rows = list(range(len(sequences)))
    for _ in range(_LONGEST_ANSWER):
        lengths = torch.tensor([len(sequences[row]) for row in open_rows])
        inputs = torch.zeros(len(open_rows), int(lengths.max()), dtype=torch.int64)
        for place, row in enumerate(open_rows):
            inputs[place, : len(sequences[row])] = torch.tensor(sequences[row])
        hidden = model.model(input_ids=inputs).last_hidden_state[torch.arange(len(open_rows)), lengths - 1]
        drawn = torch.multinomial(model.lm_head(hidden).softmax(-1), 1).squeeze(1).tolist()
        for row, token in zip(open_rows, drawn, strict=True):
            sequences[row].append(token)
        open_rows = [row for row in open_rows if sequences[row][-1] != stop]
        if not open_rows:
            break
    return [tokenizer.decode(ids[start:]) for ids, start in zip(sequences, starts, strict=True)]
