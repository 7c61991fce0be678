"""What the games have always said and paid: recorded before they were rewritten, and never to change.

Trained policies, published figures and the `nano` model depend on every character. `python test_golden.py`
prints the record of the installed version.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from tinkergym_board.dialogues import dialogues
from tinkergym_board.players import heuristic_player, random_player
from tinkergym_board.rules import Rules
from tinkergym_board.text import cell_names, read_position

from tinkergym.registration.environments import make

RECORD = Path(__file__).with_name("golden") / "episodes.json"
CASES = {
    "tic-tac-toe": ("board/TicTacToeVs-v0", {}),
    "tic-tac-toe, heuristic": ("board/TicTacToeVs-v0", {"opponent": "heuristic"}),
    "four by four": ("board/TicTacToeVs-v0", {"size": 4, "instructions": True}),
    "gomoku": ("board/GomokuVs-v0", {}),
    "gomoku, heuristic": ("board/GomokuVs-v0", {"opponent": "heuristic"}),
    "large gomoku, heuristic": ("board/GomokuVs-v0", {"size": 9, "win": 5, "opponent": "heuristic"}),
}
SIZES = {"tic-tac-toe": 3, "tic-tac-toe, heuristic": 3, "four by four": 4, "large gomoku, heuristic": 9}
SEEDS = range(120)
ILLEGAL = ["", "d9", "I play b2", "'\"\\", "💥" * 30, "b\u0662", "\ud800", "zz" * 50]


def episode(env, size, seed, *, seeded=True):
    """Play one episode, every fourth of them with an illegal move, as JSON with everything that came back."""
    rng = np.random.default_rng([seed, 7])
    rules = Rules(size, min(3, size))
    observation, info = env.reset(seed=seed) if seeded else env.reset()
    seen, ended = [observation, without_view(info)], False
    while not ended:
        player = heuristic_player if seed % 2 else random_player
        name = cell_names(size)[player(read_position(observation, rules), rng)]
        action = [name, f" {name.upper()}\n"][int(rng.integers(2))]
        if seed % 4 == 3 and rng.random() < 0.3:
            taken = [word for word in cell_names(size) if word not in observation.split()]
            choices = ILLEGAL + taken[:1]
            action = choices[int(rng.integers(len(choices)))]
        observation, reward, ended, truncated, info = env.step(action)
        seen += [action, observation, repr(reward), ended, truncated, without_view(info)]
    return json.dumps(seen)


def without_view(info):
    """Return what a policy's training sees; what people see has tests of its own."""
    return {name: value for name, value in info.items() if name != "view"}


def record():
    """Return what all the cases say now."""
    found = {}
    for name, (env_id, kwargs) in CASES.items():
        env, size = make(env_id, **kwargs), SIZES.get(name, 5)
        found[name] = {
            "metadata": {
                key: env.metadata.get(key) for key in ("render_modes", "render_fps", "system_prompt")
            },
            "first": [json.loads(episode(env, size, seed)) for seed in range(4)],
            "seeds": [digest(episode(env, size, seed)) for seed in SEEDS],
        }
        env.reset(seed=1)
        found[name]["going on without a seed"] = digest(
            *(episode(env, size, seed, seeded=False) for seed in range(20))
        )
    found["dialogues"] = digest(*(json.dumps(one) for one in dialogues(np.random.default_rng(3), 300)))
    return found


def digest(*texts):
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


@pytest.fixture(scope="module")
def now():
    return record()


@pytest.mark.parametrize("case", [*CASES, "dialogues"])
def test_says_and_pays_in_game_what_it_always_did(case, now):
    assert now[case] == json.loads(RECORD.read_text(encoding="utf-8"))[case]


if __name__ == "__main__":
    print(json.dumps(record(), indent=1))
