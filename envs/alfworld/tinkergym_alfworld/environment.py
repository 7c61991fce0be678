"""A household task as text, as a Gymnasium environment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym

from tinkergym.errors import EpisodeProtocolError, InvalidRequestError
from tinkergym.spaces import Text
from tinkergym.tasks.grid import with_tasks
from tinkergym_alfworld.engine import WORKER, EngineProcess, pool_of, refuse_missing_packages
from tinkergym_alfworld.games import Games, GameTasks, Split

PROMPT = """You are in a house and have a task. Answer with one command on the last line:
go to X, open X, close X, take X from Y, move X to Y, use X, examine X, look, inventory, \
clean X with Y, heat X with Y, cool X with Y."""

_PLACE = re.compile(r"\ban? ([a-z]+ \d+)")
_PUT = re.compile(r"put (.+) (?:in/on|in|on) (.+)")
_UNKNOWN = "Nothing happens."
_MOST_COMMAND = 200
"""Limit for the length of a command passed to the engine."""
_MOST_CALL_SECONDS = 86_400


class HouseholdEnv(gym.Env[str, str]):
    """Do a household task by text commands: ALFWorld's games, played by its own engine.

    Earns 1 when the task is done and 0 otherwise, less `unknown_penalty` for each impossible command. The
    episode is truncated after `max_steps` commands.
    """

    metadata: dict[str, Any] = {"render_modes": [], "turns": "multi", "data": "dependent"}  # noqa: RUF012 - Gymnasium declares it so
    worker: ClassVar[Sequence[str]] = WORKER
    """The command that starts the engine's process."""

    def __init__(
        self,
        *,
        games: Games = "official",
        split: Split = "train",
        task_types: Sequence[str] | None = None,
        max_steps: int = 50,
        unknown_penalty: float = 0.0,
        show_commands: bool = False,
        instructions: bool = True,
        call_seconds: float = 60.0,
        render_mode: str | None = None,
    ) -> None:
        """Choose the games.

        Args:
            games: `official`: ALFWorld's data. `made`: games of `tinkergym_alfworld.make_games`, which
                are not ALFWorld's benchmark. Both are in the folder set by `ALFWORLD_DATA`.
            split: `train`, `valid_seen` (training rooms) or `valid_unseen` (other rooms).
            task_types: Only these task types; None means all six.
            max_steps: Step limit per episode; ALFWorld's own evaluation uses 50.
            unknown_penalty: Subtracted from the reward of each impossible command; 0 or more.
            show_commands: Show all possible commands.
            instructions: Explain the commands in a system prompt.
            call_seconds: Time limit of the engine for a step; at most a day.
            render_mode: Must be None; there is nothing to render.

        Raises:
            InvalidEnvironmentError: A package or the data is missing; the message says what to do.
            InvalidRequestError: The split or task type does not exist, or a number is out of range.
        """
        self.render_mode = render_mode
        self.observation_space, self.action_space = Text(), Text()
        if not isinstance(max_steps, int) or isinstance(max_steps, bool) or max_steps < 1:
            raise InvalidRequestError(
                f"must be a positive whole number, not {max_steps!r}", field="max_steps"
            )
        if not _is_number(unknown_penalty) or not 0 <= unknown_penalty < float("inf"):
            raise InvalidRequestError(
                f"must be a number of at least 0, not {unknown_penalty!r}", field="unknown_penalty"
            )
        if not _is_number(call_seconds) or not 0 < call_seconds <= _MOST_CALL_SECONDS:
            raise InvalidRequestError(
                f"must be above 0 and at most {_MOST_CALL_SECONDS}, not {call_seconds!r}",
                field="call_seconds",
            )
        self.tasks = GameTasks(games=games, split=split, task_types=task_types)
        if self.worker is WORKER:
            refuse_missing_packages()
        prompt = {"system_prompt": PROMPT} if instructions else {}
        self.metadata = with_tasks({**self.metadata, **prompt}, self.tasks)
        self._max_steps, self._show_commands = max_steps, show_commands
        self._unknown_penalty = float(unknown_penalty)
        self._call_seconds = call_seconds
        self._engine: EngineProcess | None = None
        """The engine of the running episode."""
        self._task_type, self._way, self._steps = "", [""], 0
        self._commands: list[str] = []
        self._places: list[str] = []
        """What can be gone to, as the introduction says."""
        self._at: int | None = None
        self._playing = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start game number `options["task_index"]`, or one drawn by the seed.

        Raises:
            EnvironmentInfrastructureError: The engine failed.
        """
        super().reset(seed=seed)
        _, game = self.tasks.choose(self.np_random, options)
        self._playing = False
        if self._engine is None:
            self._engine = pool_of(self.worker).take(self, call_seconds=self._call_seconds)
        shown = self._engine.ask("load", problem=game["problem"], task=game["task"])
        self._task_type, self._way, self._steps = game["task_type"], list(game["walkthrough"]), 0
        self._commands, self._playing = shown["commands"], True
        introduction = _introduction(shown["feedback"])
        self._places, self._at = _PLACE.findall(introduction), None
        about = {"game": game["game"], "task_type": self._task_type}
        return self._words(introduction), {**about, **self._view()}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Execute a command. Impossible commands change nothing and count as `unknown_commands`.

        Raises:
            EpisodeProtocolError: No episode is running.
            EnvironmentInfrastructureError: The engine failed, and the episode is lost.
        """
        if not self._playing or self._engine is None:
            raise EpisodeProtocolError("no episode is running", hint="call reset before step")
        command = command_in(action)
        self._steps += 1
        known = command in self._commands
        feedback, won = _UNKNOWN, False
        if known:
            self._playing = False  # until the engine has responded
            shown = self._engine.ask("step", command=command)
            feedback, won, self._commands = shown["feedback"].strip(), shown["won"], shown["commands"]
            self._playing = True
            if command.startswith("go to ") and command[6:] in self._places:
                self._at = self._places.index(command[6:])
            # Once a policy has left the known solution, none is known.
            self._way = self._way[1:] if self._way and self._way[0] == command else []
        truncated = not won and self._steps >= self._max_steps
        self._playing = not (won or truncated)
        metrics = {"unknown_commands": float(not known)}
        if not self._playing:
            metrics |= {"success": float(won), f"success_{self._task_type}": float(won)}
            self.end_episode()
        info = {"metrics": metrics, "task_type": self._task_type, **self._view()}
        reward = float(won) if known else -self._unknown_penalty
        return self._words(feedback), reward, won, truncated, info

    def legal_actions(self) -> list[str]:
        """Return the currently possible commands."""
        return list(self._commands)

    def gold_action(self) -> str | None:
        """Return the next command of the game's own solution; None once the policy has left it."""
        return self._way[0] if self._way else None

    def end_episode(self) -> None:
        """Leave the engine to the next episode, of this environment or another."""
        engine, self._engine, self._playing = self._engine, None, False
        if engine is not None and engine.runs:
            pool_of(self.worker).give_back(engine)

    def close(self) -> None:
        """End the episode, and engines that no other environment may need."""
        self.end_episode()
        pool_of(self.worker).leave(self)

    def _view(self) -> dict[str, Any]:
        """Return the house for people who watch."""
        return {"view": {"kind": "map", "places": self._places, "at": self._at}} if self._places else {}

    def _words(self, feedback: str) -> str:
        if not self._show_commands:
            return feedback
        return f"{feedback}\nCommands: {', '.join(self._commands)}"


def command_in(action: str) -> str:
    """Return the command at the end of a text, in the engine's spelling.

    The last line counts, so a policy may think first. `put X in/on Y`, the form before ALFWorld 0.4, is
    accepted as `move X to Y`.
    """
    lines = [line.strip() for line in action.splitlines() if line.strip()]
    command = " ".join(lines[-1].lower().split()) if lines else ""
    command = command.removeprefix("action:").removeprefix(">").strip()[:_MOST_COMMAND]
    found = _PUT.fullmatch(command)
    return f"move {found[1]} to {found[2]}" if found else command


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _introduction(feedback: str) -> str:
    """Return the first observation without the engine's banner."""
    text = feedback.strip()
    start = text.find("You are in the middle")
    return text[start:] if start > 0 else text
