"""Games made of chance, which keep their own account of who was asked and what each agent was paid."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from tinkergym.spaces import Text


class RandomGame(AECEnv):
    """Agents act in any order, are paid at any time, join late, leave early, and fail where they are told to.

    An observation says how many actions there were; an account of all that happened is in `played`.
    """

    metadata = {"name": "random", "render_modes": []}  # noqa: RUF012 - PettingZoo declares it so

    def __init__(self, players=3, *, leave=0.1, late=True, most=12, broken_at=-1, played=None):
        self.possible_agents = [f"p{number}" for number in range(players)]
        self.settings = leave, late, most, broken_at
        self.played = [] if played is None else played

    def observation_space(self, agent):
        return spaces.Dict({"text": Text()})

    def action_space(self, agent):
        return Text()

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.account = dict.fromkeys(self.possible_agents, 0.0)
        self.order = []
        self.played.append(self)
        late = self.settings[1] and len(self.possible_agents) > 2
        self.agents = self.possible_agents[:-1] if late else self.possible_agents[:]
        self.waiting = self.possible_agents[-1:] if late else []
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self._skip_agent_selection = None
        self.agent_selection = str(self.rng.choice(self.agents))

    def observe(self, agent):
        return {"text": f"{agent} after {len(self.order)}"}

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        leave, _, most, broken_at = self.settings
        if len(self.order) == broken_at:
            raise RuntimeError("the game broke")
        self.order.append((agent, action))
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self._pay()
        live = [one for one in self.agents if not self.terminations[one]]
        if self.waiting and self.rng.random() < 0.3:
            live += self._join(self.waiting.pop())
        at_once = len(self.order) >= most
        ends = [one for one in live if at_once or self.rng.random() < leave]
        for one in ends:
            (self.truncations if self.rng.random() < 0.3 else self.terminations)[one] = True
        self._accumulate_rewards()
        still = [one for one in live if one not in ends]
        self.agent_selection = str(self.rng.choice(still or self.agents))
        self._deads_step_first()

    def _pay(self):
        for one in self.agents:
            if self.rng.random() < 0.5:
                self.rewards[one] = float(self.rng.integers(-8, 9)) / 4
                self.account[one] += self.rewards[one]

    def _join(self, agent):
        self.agents.append(agent)
        self.rewards[agent] = self._cumulative_rewards[agent] = 0.0
        self.terminations[agent] = self.truncations[agent] = False
        self.infos[agent] = {}
        return [agent]

    def close(self):
        pass


class HiddenMoves(ParallelEnv):
    """All act at once, without seeing what the others do, and are paid by round; the lowest leaves."""

    metadata = {"name": "hidden", "render_modes": []}  # noqa: RUF012 - as above
    render_mode = None

    def __init__(self, players=3, rounds=4, played=None):
        self.possible_agents = [f"p{number}" for number in range(players)]
        self.rounds = rounds
        self.played = [] if played is None else played

    def observation_space(self, agent):
        return spaces.Dict({"text": Text()})

    def action_space(self, agent):
        return Text()

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.agents = self.possible_agents[:]
        self.account = dict.fromkeys(self.agents, 0.0)
        self.order, self.round = [], 0
        self.played.append(self)
        return self._shown(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.order += [(agent, actions[agent]) for agent in self.agents]
        self.round += 1
        paid = {agent: float(self.rng.integers(-4, 5)) / 4 for agent in self.agents}
        for agent, reward in paid.items():
            self.account[agent] += reward
        over = self.round >= self.rounds or len(self.agents) < 2
        gone = set(self.agents) if over else {min(paid, key=paid.get)} if self.rng.random() < 0.4 else set()
        shown = self._shown()
        self.agents = [agent for agent in self.agents if agent not in gone]
        return (
            shown,
            paid,
            {agent: agent in gone for agent in paid},
            dict.fromkeys(paid, False),
            {agent: {} for agent in paid},
        )

    def _shown(self):
        return {agent: {"text": f"round {self.round}"} for agent in self.agents}

    def close(self):
        pass
