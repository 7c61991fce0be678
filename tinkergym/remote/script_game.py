"""One game of a user's own `agent_iter` loop: turns `act` and `step` into the events of a coordinator.

No input or output. As in a loop with one agent, a seat's observation is only known when the script calls
`act`, so the game's position is kept until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tinkergym.agent.agent_loop import AgentLoop, AgentState
from tinkergym.agent.coordinator import Coordinator, Position, Standing
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import EpisodeProtocolError
from tinkergym.messages import Observation
from tinkergym.rollout.table_players import SeatedPlayer, acting_failed, seat_player
from tinkergym.schema.episodes import EpisodeRequest
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.trajectory.trajectory import StopReason, Trajectory


class ScriptGame:
    """Records one leased game."""

    def __init__(
        self,
        request: EpisodeRequest,
        renderer: Callable[[str], Renderer],
        game: Any,
        environment_prompt: str | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start; the caller resets the game.

        Args:
            request: The lease.
            renderer: Returns the renderer of a seat's model.
            game: A PettingZoo AEC environment.
            environment_prompt: The game's own system prompt, for seats without one.
            clock: Returns seconds, monotonic.
        """
        self.request, self._game, self._clock = request, game, clock
        self._ends_at = clock() + request.limits.episode_timeout_seconds
        self._environment_prompt = environment_prompt
        plan = EpisodePlan.from_request(request)
        self._coordinator = Coordinator(
            {seat.agent: AgentLoop(renderer(seat.model), seat) for seat in plan.seats}, clock=clock
        )
        self._sampled = frozenset(request.sampled_seats)
        self._players: dict[str, SeatedPlayer] = {
            agent: seat_player(game.unwrapped, agent, player, seed)
            for agent, (player, seed) in plan.table.items()
        }
        self._ended: list[Standing] = []
        """Agents whose game is over since the last turn of a sampled seat."""
        self._owed: dict[str, Any] = {}
        """Each agent's reward since its last action."""
        self._pending: SampleRequest | None = None
        self._answered = ""
        """The agent that has answered and not stepped yet."""

    @property
    def over(self) -> bool:
        """Whether the record is complete."""
        return self._coordinator.state is AgentState.TERMINATED

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it ended; None while it continues."""
        return self._coordinator.stop_reason

    def trajectories(self) -> list[Trajectory]:
        """Return the record of each sampled seat of a finished game."""
        return self._coordinator.trajectories()

    def fail(self, reason: StopReason, error: str) -> None:
        """End the game for an external reason; a finished game stays as it ended."""
        self._coordinator.fail(reason, error)

    def hears(self, agent: str, observation: Observation) -> SampleRequest | str | None:
        """Handle an agent's observation.

        Returns:
            The request for its answer; the answer itself if one of the game's own players takes the seat;
            None if a limit has ended the game.

        Raises:
            EpisodeProtocolError: It is not this agent's turn, or its last answer was not used in a step.
        """
        if self.over:
            return None
        if self._pending is not None:  # sampling it failed, and this is the next try
            return self._pending
        self._expect_turn_of(agent)
        if agent in self._players:
            return self._played_here(agent, observation)
        turn = replace(Standing.in_game(self._game), observation=observation)
        self._pending = self._follow(turn)
        if self._pending is not None and self._clock() >= self._ends_at:
            self._coordinator.fail(StopReason.EPISODE_TIMEOUT, "the game's time ran out")
            self._pending = None
        return self._pending

    def answers(self, completion: Completion) -> str:
        """Handle the sampled tokens and return the text of the agent whose turn it is."""
        self._pending = None
        self._answered = self._coordinator.acting
        return self._coordinator.receive(completion)

    def expect_an_answer(self) -> None:
        """Check that the agent whose turn it is has answered.

        Raises:
            EpisodeProtocolError: It has not.
        """
        agent = self._game.agent_selection
        if agent != self._answered:
            raise EpisodeProtocolError(
                f"step() was called before agent {agent!r} answered, so the step could not be trained on",
                hint="take the action from env.act(agent, observation), and None where its game is over",
            )

    def leaves(self) -> None:
        """Record that the game is over for the agent whose turn it is, before its last step."""
        standing = Standing.in_game(self._game)
        # The standing has what it was owed.
        self._owed[standing.agent] = 0.0
        if standing.agent in self._sampled:
            self._ended.append(standing)

    def stepped(self) -> None:
        """Record the rewards of the step of an agent that answered."""
        # As in PettingZoo's own sums, which begin anew with each step of the agent.
        self._owed[self._answered] = 0.0
        self._answered = ""
        for agent, reward in self._game.rewards.items():
            self._owed[agent] = self._owed.get(agent, 0.0) + reward

    def finish(self) -> None:
        """Record that no agent is left."""
        if not self.over:
            self._follow(None)

    # --- inside ---

    def _expect_turn_of(self, agent: str) -> None:
        selected = self._game.agent_selection
        if agent != selected:
            raise EpisodeProtocolError(
                f"act() was called for agent {agent!r}, but it is {selected!r}'s turn",
                hint="act for the agent that env.agent_iter() gives",
            )
        if self._answered:
            raise EpisodeProtocolError(
                "act() was called twice without a step() between",
                hint="take the last answer into env.step() first",
            )

    def _played_here(self, agent: str, observation: Observation) -> str:
        player = self.request.seats[agent].table
        assert player is not None
        try:
            action = str(self._players[agent].act(agent, observation))
        except Exception as error:  # a game's own player is foreign code
            raise acting_failed(agent, player, error) from error
        self._answered = agent
        return action

    def _follow(self, turn: Standing | None) -> SampleRequest | None:
        """Pass the game's position to the coordinator."""
        ended, self._ended = tuple(self._ended), []
        if turn is not None:
            self._owed[turn.agent] = 0.0
        owed = {
            agent: paid
            for agent, paid in self._owed.items()
            if agent in self._sampled and (turn is None or agent != turn.agent)
        }
        agents = tuple(agent for agent in self._game.possible_agents if agent not in self._players)
        position = Position(agents=agents, ended=ended, turn=turn, owed=owed)
        if self._coordinator.state is AgentState.PENDING:
            return self._coordinator.begin(position, environment_prompt=self._environment_prompt)
        return self._coordinator.stepped(position)
