"""Who has won, drawn or lost: by the returns of all players, not by the sign of one."""

from __future__ import annotations

import pytest

from tinkergym.games.game_env import GameEnv
from tinkergym.games.text_game import TextGame

WON, DRAWN, LOST, OUT = "You win.", "Draw.", "You lose.", "You are out."


class Pays(TextGame):
    """Ends with the first move and these rewards, or first goes on without some players."""

    def __init__(self, rewards, gone=()):
        self.players, self.rewards, self.gone = len(rewards), rewards, list(gone)

    def play(self, player, move):
        if self.gone:
            self.eliminate(*self.gone.pop())
            return None
        return self.rewards


def told(game):
    """Return each player's last text and metric."""
    env = GameEnv(game)
    env.reset(seed=0)
    texts, metrics = {}, {}
    while env.agents:
        agent = env.agent_selection
        over = env.terminations[agent]
        if over:
            texts[agent] = env.observe(agent)["text"]
            metrics[agent] = [name for name, value in env.infos[agent]["metrics"].items() if value]
        env.step(None if over else "x")
    agents = env.possible_agents
    return [texts[agent] for agent in agents], [metrics[agent] for agent in agents]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1.0, -1.0], [WON, LOST]),
        ([0.0, 0.0], [DRAWN, DRAWN]),
        ([1.0, 1.0], [WON, WON]),
        ([-1.0, -1.0], [LOST, LOST]),
        ([0.0, 1.0, -1.0], [LOST, WON, LOST]),
        ([0.5, 2.0, 2.0], [LOST, WON, WON]),
        ([0.0, -1.0, -1.0], [WON, LOST, LOST]),
        ([0.1 + 0.2, 0.3, 0.3], [WON, WON, WON]),
        ([0.0], [LOST]),
        ([1.0], [WON]),
    ],
)
def test_tells_outcome_by_returns_of_all(rewards, expected):
    texts, metrics = told(Pays(rewards))
    assert texts == expected
    names = {WON: ["won"], DRAWN: ["drawn"], LOST: ["lost"] if len(rewards) > 1 else []}
    assert metrics == [names[text] for text in expected]


def test_calls_early_exit_out_and_lost():
    texts, metrics = told(Pays([0.0, 1.0, -1.0], gone=[(0, 0.0)]))
    assert texts == [OUT, WON, LOST]
    assert metrics == [["lost"], ["won"], ["lost"]]


def test_lets_early_exit_with_reward_win():
    texts, _ = told(Pays([0.0, 0.0, -1.0], gone=[(0, 1.0)]))
    assert texts == [WON, LOST, LOST]


def test_judges_last_player_out_by_all_returns():
    game = Pays([0.0, 0.0], gone=[(1, 1.0), (0, 0.0)])
    assert told(game)[0] == [OUT, WON]
