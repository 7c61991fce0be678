"""Evaluation on the way: which episodes a job plays apart from those that it learns from, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, JsonValue

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.model import Choice
from tinkergym.schema.opponents import FixedPlayer
from tinkergym.trajectory.trajectory import AgentId

FIRST_HELD_OUT_SEED = 2**31
"""Episodes that are learned from have smaller seeds."""

MOST_EPISODES = 10_000
"""Of one evaluation."""

MOST_EVALUATIONS = 16
"""Of one job."""


class EvaluateEvery(Choice):
    """Play episodes with the version of every n-th step, without learning from them.

    Also before the first step and after the last one. The job's own environment is played, in other seeds
    than training's; say `split=` or `env_kwargs=` to play it with other arguments, or name another
    environment that the service has.

    Example:
        >>> held_out = tg.EvaluateEvery(20, split="test", episodes=200)
        >>> client.train("math/Arithmetic-v0", steps=200, evaluate=held_out)
    """

    steps: int = Field(ge=1)
    """Train steps between two evaluations."""
    environment: str = Field("", max_length=200)
    """The id of another environment; empty for the job's own."""
    env_kwargs: dict[str, JsonValue] = {}
    """Instead of the arguments of the same name that the job gives its environment."""
    episodes: int = Field(64, ge=1, le=MOST_EPISODES)
    """Each has a seed of its own, the same at every evaluation. In a game whose policy can take several seats
    the games are mirrored: one per seat with the same seed; the last such set is always completed.
    """
    seed: int = Field(FIRST_HELD_OUT_SEED, ge=0, lt=2**32)
    """Of the first episode; the others count up."""
    temperature: float = Field(0.0, ge=0, le=10)
    """0 takes the likeliest token."""
    name: str = Field("", max_length=100)
    """In events and curves; empty takes the environment's id. Two evaluations cannot have one name."""
    agent: AgentId | None = None
    """In a game, whose policy: a seat with `Train`. None is the first. It plays its own seats in turn."""
    against: FixedPlayer | None = None
    """In a game, who plays all other seats. None is the game's random player, or the base model where it has
    none.
    """
    patience: int | None = Field(None, ge=1)
    """End the job when so many evaluations in a row were no better than the best one before them."""
    target: float | None = None
    """End the job when the mean return is at least this."""

    def __init__(
        self,
        steps: int | None = None,
        environment: str | None = None,
        /,
        *,
        split: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        """Say how often, and what.

        Args:
            steps: Train steps between two evaluations.
            environment: The id of another environment than the job's.
            split: Short for `env_kwargs={"split": ...}`.
            env_kwargs: For the environment's constructor; JSON values.
            **settings: Any other field: episodes, seed, temperature, name, patience, target.

        Raises:
            InvalidRequestError: A setting is wrong; says which, why and what to do.
        """
        if environment is not None and not isinstance(environment, str):
            raise InvalidRequestError(
                f"another environment is given by its id, not as {type(environment).__name__}",
                hint="leave it out to play the job's own, with split= or env_kwargs= in other arguments",
                field="EvaluateEvery.environment",
            )
        positional = {"steps": steps, "environment": environment}
        settings = {name: value for name, value in positional.items() if value is not None} | settings
        if env_kwargs is not None or split is not None:
            settings["env_kwargs"] = dict(env_kwargs or {}) | ({} if split is None else {"split": split})
        super().__init__(**settings)

    # As in `Choice`: settings inside of others are read without it.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def is_due(self, step: int, *, last: int) -> bool:
        """Whether the version of a step is evaluated; 0 is before the first, and `last` the job's last."""
        return step % self.steps == 0 or step == last
