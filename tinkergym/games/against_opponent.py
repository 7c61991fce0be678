"""AgainstOpponent: one seat of a PettingZoo game as a Gymnasium environment."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Protocol

import gymnasium as gym
from gymnasium import spaces

from tinkergym.errors import EpisodeProtocolError, InvalidEnvironmentError, InvalidRequestError
from tinkergym.games.illegal import quoted_action
from tinkergym.games.parallel import with_turns
from tinkergym.messages import observation_text

_SEATS = ("first", "second", "seed")
_MOST_BEGINNINGS = 10


class TextPlayer(Protocol):
    """Reads an observation and returns an action.

    May also have `reset(seed)`, which begins a game, or `chat()`, which returns a player that remembers one.
    """

    def act(self, observation: str) -> str:
        """Return the action."""
        ...


class AgainstOpponent(gym.Env[str, str]):
    """One agent's seat in a turn-based game. The other seats are played inside `reset` and `step`.

    Takes PettingZoo AEC environments whose observations are text, or mappings with text under `text`. The
    seat and named opponents use this environment's generator, and the game uses another one started with the
    same seed: the same seed and the same moves give the same episode.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - Gymnasium declares it so
    observation_space: gym.Space[str]
    action_space: gym.Space[str]

    def __init__(
        self,
        aec_env: Any,
        *,
        opponent: str | TextPlayer | None = None,
        seat: str = "seed",
        render_mode: str | None = None,
    ) -> None:
        """Set up the environment.

        Args:
            aec_env: The game, AEC or parallel. This environment takes ownership of it.
            opponent: A player of the game by name, such as `random`, or an object with `act(observation) ->
                str`, which sees what an agent in its seat sees. By default the game's first. In a game for
                more than two it plays all other seats.
            seat: `first`, `second`, or `seed`: drawn for each episode.
            render_mode: With `ansi`, `render` returns the game as text.

        Raises:
            InvalidRequestError: A setting is invalid; see `field`.
        """
        self.aec_env = aec_env = with_turns(aec_env)
        self.render_mode = render_mode
        self._table: Any = aec_env.unwrapped
        self._agents: list[str] = list(getattr(aec_env, "possible_agents", ()))
        if not self._agents:
            raise InvalidEnvironmentError(
                f"{type(self._table).__name__} has no possible_agents",
                hint="list all agents there when the game is created, including those who join later",
                field="environment",
            )
        if seat not in _SEATS:
            raise InvalidRequestError(
                f"{seat!r} is not a seat", hint=f"choose one of {', '.join(_SEATS)}", field="seat"
            )
        if seat == "second" and len(self._agents) < 2:
            raise InvalidRequestError("a game for one player has no second seat", field="seat")
        self.seat = seat
        self._opponent: TextPlayer | None = None
        self._scripted = ""
        if len(self._agents) > 1:
            self._seat_player(opponent)
        self.metadata = {"turns": "multi", "data": "free", **aec_env.metadata, **type(self).metadata}
        self.metadata.pop("is_parallelizable", None)
        self.observation_space = _text_space(aec_env.observation_space(self._agents[0]))
        self.action_space = aec_env.action_space(self._agents[0])
        self._agent = self._agents[0]
        self._playing = False
        self._owed = 0.0

    @property
    def game(self) -> Any:
        """The rules of the game, if it is a `TextGame`."""
        return getattr(self._table, "game", None)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin a game. Opponents who move first have already moved when this returns.

        Rewards of the agent from their moves are added to the first step's reward.
        """
        super().reset(seed=seed)
        # Not the seed itself: otherwise the game and the opponents would draw the same numbers.
        game_seed = None if seed is None else zlib.crc32(b"game %d" % seed)
        for _ in range(_MOST_BEGINNINGS):
            self.aec_env.reset(seed=game_seed, options=options)
            self._sit_down()
            # Gymnasium's reset returns no reward, so rewards from before the first move come with the first
            # step.
            self._owed = self._opponents_move()
            self._playing = not self._over()
            if self._playing:
                return self._observation(), self._info()
            # An opponent lost by an illegal move before the agent could move, so there is no episode.
            game_seed = None
        raise InvalidEnvironmentError(
            f"{_MOST_BEGINNINGS} games in a row ended before the agent's first move",
            hint="use an opponent that makes legal moves",
            field="opponent",
        )

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Act, and let the opponents move.

        Raises:
            EpisodeProtocolError: No episode is running.
        """
        if not self._playing:
            raise EpisodeProtocolError("no episode is running", hint="call reset before step")
        agent, aec_env = self._agent, self.aec_env
        aec_env.step(action)
        reward = self._owed + float(aec_env.rewards.get(agent, 0.0))
        self._owed = 0.0
        if aec_env.agent_selection != agent:
            reward += self._opponents_move()
        # An environment may remove an agent whose game is over before its final turn.
        terminated = bool(aec_env.terminations.get(agent, True))
        truncated = bool(aec_env.truncations.get(agent, False))
        self._playing = not (terminated or truncated)
        return self._observation(), reward, terminated, truncated, self._info()

    def legal_actions(self) -> list[str] | None:
        """Return the agent's legal actions; None if the game cannot list them."""
        listed = getattr(self._table, "legal_actions", None)
        if listed is None:
            return None
        return list(listed(self._agent) or []) if self._playing else []

    def gold_action(self) -> str | None:
        """Return the agent's best action; None if it is unknown. Does not use randomness."""
        best = getattr(self._table, "gold_action", None)
        return best(self._agent) if best is not None and self._playing else None

    def seat_opponent(self, answer: Callable[[str], str]) -> None:
        """Replace the player of the other seats, from the next move on.

        Args:
            answer: Gets what an agent in that seat sees and returns an action. If it is not a legal move, it
                is told so and called again.
        """
        self._opponent, self._scripted = _Patient(self, answer), ""

    def render(self) -> Any:
        """Return the game as readable text."""
        game = self.game
        return game.render() if game is not None else self.aec_env.render()

    def close(self) -> None:
        """Close the game."""
        self.aec_env.close()

    def _seat_player(self, opponent: str | TextPlayer | None) -> None:
        offered = getattr(self.game or self._table, "opponents", ())
        chosen = offered[0] if opponent is None and offered else opponent
        if callable(getattr(chosen, "act", None)):
            # A policy of the service remembers a game in a conversation.
            converse = None if hasattr(chosen, "reset") else getattr(chosen, "chat", None)
            self._opponent = chosen if converse is None else converse()  # type: ignore[assignment] # looked at
            return
        check = getattr(self._table, "check_opponent", None)
        if check is None or not isinstance(chosen, str):
            raise InvalidRequestError(
                f"{chosen!r} is not an opponent for {self._table}",
                hint="pass an object with a method act(observation) that returns an action",
                field="opponent",
            )
        check(chosen)
        self._scripted = chosen

    def _sit_down(self) -> None:
        if self.seat == "seed" and len(self._agents) > 1:
            self._agent = self._agents[int(self.np_random.integers(len(self._agents)))]
        else:
            self._agent = self._agents[1 if self.seat == "second" else 0]
        begin = getattr(self._opponent, "reset", None)
        if begin is not None:
            begin(seed=int(self.np_random.integers(2**31)))

    def _opponents_move(self) -> float:
        """Let the others move until it is the agent's turn or its game is over; return its rewards."""
        aec_env, me, earned = self.aec_env, self._agent, 0.0
        # An agent may join late, so `me` may not be present yet; without any agent the game has ended.
        while aec_env.agents and (agent := aec_env.agent_selection) != me and not self._over():
            if aec_env.terminations[agent] or aec_env.truncations[agent]:
                action: str | None = None
            elif self._opponent is not None:
                action = self._opponent.act(observation_text(aec_env.observe(agent)))
            else:
                action = self._table.scripted_action(agent, self._scripted, self.np_random)
            aec_env.step(action)
            earned += float(aec_env.rewards.get(me, 0.0))
        return earned

    def _over(self) -> bool:
        aec_env, me = self.aec_env, self._agent
        ended = aec_env.terminations.get(me, False) or aec_env.truncations.get(me, False)
        return bool(ended) or not aec_env.agents

    def _observation(self) -> str:
        return observation_text(self.aec_env.observe(self._agent))

    def _info(self) -> dict[str, Any]:
        info = self.aec_env.infos.get(self._agent, {})
        # A copy: a returned value must not change when the game continues.
        return {key: dict(value) if isinstance(value, dict) else value for key, value in info.items()}


class _Patient:
    """Repeats the question until the answer is a legal move."""

    def __init__(self, env: AgainstOpponent, answer: Callable[[str], str]) -> None:
        self._env, self._answer = env, answer

    def act(self, observation: str) -> str:
        table = self._env._table
        question = observation
        while True:
            action = self._answer(question)
            if not hasattr(table, "is_legal") or table.is_legal(table.agent_selection, action):
                return action
            question = f"{quoted_action(action)} is not a legal move.\n{observation}"


def _text_space(space: spaces.Space[Any]) -> spaces.Space[Any]:
    return space["text"] if isinstance(space, spaces.Dict) and "text" in space.spaces else space
