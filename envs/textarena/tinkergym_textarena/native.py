"""A game of TextArena: created, reset, played and copied without side effects on the rest of the process."""

from __future__ import annotations

import importlib
import pickle
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tinkergym.errors import EnvironmentInfrastructureError, InvalidEnvironmentError, InvalidRewardError
from tinkergym_textarena.isolation import drawing_from, redirect_loaded_modules

MOST_ACTION_CHARACTERS = 4000
"""Of a longer action the game only sees the end. Some games' patterns take quadratic time: a day for a
megabyte."""

_lock = threading.RLock()


class NativeGame:
    """A running game, between `reset` and its end.

    Attributes:
        rewards: By player, once the game is over.
    """

    def __init__(self, game_id: str, players: int, seed: int, settings: Mapping[str, Any]) -> None:
        """Create and reset the game: some games keep state from the last episode.

        Raises:
            InvalidEnvironmentError: TextArena has no such game, or it cannot be made here; the error says
                why.
        """
        self._game_id = game_id
        self._random = random.Random(seed)
        spec = game_spec(game_id)
        with drawing_from(self._random), _explaining(game_id, "make"):
            import textarena

            # The plain game: the usual wrappers repeat the whole history with every observation.
            self._game = textarena.make(f"{game_id}-raw", **settings)
            self._game.reset(num_players=players, seed=seed)
        self._action_wrappers = _action_wrappers(spec)
        self._only_messages = _shows_only_messages(spec)
        self.over = False

    @property
    def id(self) -> str:
        """The game's id in TextArena."""
        return self._game_id

    @property
    def player(self) -> int:
        """The player whose turn it is."""
        return int(self._game.state.current_player_id)

    @property
    def rewards(self) -> dict[int, float]:
        """What each player has earned.

        Raises:
            InvalidRewardError: The game is over but reports no rewards.
        """
        rewards = self._game.state.rewards or {}
        # Some games mix up the arguments and return their reason as the reward.
        if not rewards or not all(isinstance(reward, int | float) for reward in rewards.values()):
            raise InvalidRewardError(
                f"{self._game_id} ended with {str(rewards)[:200]} as rewards",
                hint="report it to TextArena; the episode does not count",
            )
        return {int(player): float(reward) for player, reward in rewards.items()}

    def facts(self, player: int) -> dict[str, Any]:
        """Return what the game reports about a player, at its end with `reason` and `invalid_move`."""
        return dict(self._game.state.game_info.get(player, {}))

    def news(self, player: int, *, echo: bool) -> str:
        """Return what a player has not been shown yet, one message per line, in TextArena's wording.

        Args:
            player: The player.
            echo: Include the player's own words. A policy already has them in its context.
        """
        messages = self._messages(player)
        if self._only_messages:
            hidden = ("PLAYER_ACTION", "GAME_ADMIN")
            return "\n".join(f" {message}" for _, message, kind in messages if kind.name not in hidden)
        return "\n".join(
            f"[{self._name(sender)}] {message}"
            for sender, message, kind in messages
            if echo or sender != player or kind.name != "PLAYER_ACTION"
        )

    def _messages(self, player: int) -> list[Any]:
        """Return and remove what a player has not been shown yet."""
        if player == self.player and not self.over:
            # Some games add something on the player's turn, such as the proposal to answer.
            with drawing_from(self._random), _explaining(self._game_id, "play"):
                return list(self._game.get_observation()[1])
        state = self._game.state
        messages, state.observations[player] = state.observations[player], []
        return list(messages)

    def act(self, action: str) -> bool:
        """Let the player whose turn it is act; return whether the game accepted the action as legal.

        Raises:
            EnvironmentInfrastructureError: The game itself failed.
        """
        state, player = self._game.state, self.player
        mistakes = getattr(state, "error_count", 0)
        action = action[-MOST_ACTION_CHARACTERS:]
        for wrapper in reversed(self._action_wrappers):
            action = wrapper(self._game).action(action)
        with drawing_from(self._random), _explaining(self._game_id, "play"):
            done, _ = self._game.step(action)
        self.over = bool(done)
        if self.over:
            return not self.facts(player).get("invalid_move", False)
        return bool(getattr(state, "error_count", 0) <= mistakes or state.current_player_id != player)

    def legal(self, moves: Iterable[str]) -> Iterator[str]:
        """Yield those moves that the game would accept now, found by trying each on a copy."""
        fresh_copy = self._copier()
        return (move for move in moves if fresh_copy().act(move))

    def _copier(self) -> Callable[[], NativeGame]:
        """Return a function that copies the game in its current state, without its messages."""
        state = self._game.state
        said = state.logs, state.observations
        state.logs, state.observations = [], {player: [] for player in state.observations}
        try:
            packed = pickle.dumps(self)
        finally:
            state.logs, state.observations = said
        # Several times faster than copy.deepcopy.
        return lambda: pickle.loads(packed)

    @property
    def plain(self) -> Any:
        """TextArena's own object."""
        return self._game

    def _name(self, sender: int) -> str:
        # Like TextArena's observation wrapper names senders.
        names = self._game.state.role_mapping
        return "GAME" if sender == -1 else str(names.get(sender, f"Player {sender}"))


def game_spec(game_id: str) -> Any:
    """Return TextArena's registration of a game, with its module imported and isolated.

    Raises:
        InvalidEnvironmentError: TextArena is not installed, has no such game, or the game's module cannot be
            imported.
    """
    with _lock, _explaining(game_id, "import"):
        from textarena.envs.registration import ENV_REGISTRY

        spec = ENV_REGISTRY.get(game_id)
        if spec is None or f"{game_id}-raw" not in ENV_REGISTRY:
            raise InvalidEnvironmentError(
                f"TextArena has no game {game_id!r}", hint="write its id, as Nim-v0-large", field="game"
            )
        if isinstance(spec.entry_point, str):
            with _no_downloads():
                importlib.import_module(spec.entry_point.partition(":")[0])
        redirect_loaded_modules()
        _refuse_edited_views(game_id, spec)
        return spec


def _action_wrappers(spec: Any) -> list[Any]:
    from textarena import ActionWrapper

    return [kind for kind in spec.default_wrappers or () if issubclass(kind, ActionWrapper)]


def _refuse_edited_views(game_id: str, spec: Any) -> None:
    """Refuse a game that edits a player's history: observations here are only appended to."""
    from textarena import ObservationWrapper
    from textarena.wrappers import GameMessagesObservationWrapper, LLMObservationWrapper

    views = [kind for kind in spec.default_wrappers or () if issubclass(kind, ObservationWrapper)]
    if views not in ([LLMObservationWrapper], [GameMessagesObservationWrapper]):
        names = ", ".join(kind.__name__ for kind in views) or "no observation wrapper"
        raise InvalidEnvironmentError(
            f"{game_id} uses {names}, which changes what a player has already read",
            hint="choose another game",
            field="game",
        )


def _shows_only_messages(spec: Any) -> bool:
    """Return whether TextArena hides from this game's players what they say to each other."""
    from textarena.wrappers import GameMessagesObservationWrapper

    return GameMessagesObservationWrapper in (spec.default_wrappers or ())


@contextmanager
def _no_downloads() -> Iterator[None]:
    """Keep games from downloading word lists when they are imported: imports must not need a network."""
    import nltk

    download, nltk.download = nltk.download, lambda *_, **__: False
    try:
        yield
    finally:
        nltk.download = download


@contextmanager
def _explaining(game_id: str, what: str) -> Iterator[None]:
    """Turn TextArena's exceptions into an error with a hint."""
    try:
        yield
    except InvalidEnvironmentError:
        raise
    except ModuleNotFoundError as error:
        raise InvalidEnvironmentError(
            f"{game_id} cannot be imported: {error}", hint="pip install 'textarena>=0.7.4,<0.8'", field="game"
        ) from error
    except LookupError as error:
        if "nltk" not in str(error).lower():
            raise _failed(game_id, what, error) from error
        raise InvalidEnvironmentError(
            f"{game_id} needs word lists that are not on this machine",
            hint="fetch them with `python -m nltk.downloader words averaged_perceptron_tagger_eng`",
            field="game",
        ) from error
    # Games are third-party code, and each fails differently.
    except Exception as error:
        raise _failed(game_id, what, error) from error


def _failed(game_id: str, what: str, error: Exception) -> Exception:
    reason = f"{type(error).__name__}: {str(error).strip()[:200]}"
    if what == "play":
        return EnvironmentInfrastructureError(f"{game_id} failed during play: {reason}")
    return InvalidEnvironmentError(
        f"{game_id} cannot be set up: {reason}", hint="choose another game or other settings", field="game"
    )
