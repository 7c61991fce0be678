"""Evaluation during training: which held-out episodes a job plays, and how often."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field, JsonValue, PrivateAttr

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.fixed_players import FixedPlayer
from tinkergym.schema.model import Choice, WireModel
from tinkergym.schema.names import LOCAL, local_id
from tinkergym.trajectory.trajectory import AgentId

FIRST_HELD_OUT_SEED = 2**31
"""Training episodes have smaller seeds."""

MOST_EPISODES = 10_000
"""The most episodes of one evaluation."""

USUAL_EPISODES = 64
"""How many an evaluation plays if that is not set, and its environment has no tasks or many."""

MOST_EVALUATIONS = 16
"""The most evaluations of one job."""


def tasks_played(
    tasks: int,
    *,
    episodes: int | None,
    samples: int,
    names_split: bool,
    usual: int,
    seed: int,
    most: int | None = None,
) -> list[int | None]:
    """Return the task of each episode of an evaluation, in order; None is drawn by the episode's seed.

    Args:
        tasks: How many the environment has; 0 for one without.
        episodes: How many to play, without replacement; None plays all tasks, or `usual` many.
        samples: Episodes of each task; `episodes` counts them all.
        names_split: Whether a split is named, whose tasks are all played by default.
        usual: Up to how many tasks all are played in any case.
        seed: Draws the tasks if not all are played.
        most: The most episodes; None plays any number.
    """
    if not tasks:
        return [None] * (episodes or usual)
    whole = episodes is None and (names_split or tasks <= usual or samples > 1)
    if whole and (most is None or tasks * samples <= most):
        return [task for task in range(tasks) for _ in range(samples)]
    wanted = episodes or (usual if most is None or not whole else most)
    order: Sequence[int] = range(tasks)
    if -(-wanted // samples) % tasks:
        order = [int(task) for task in np.random.default_rng(seed).permutation(tasks)]
    return [order[number // samples % tasks] for number in range(wanted)]


class EvaluateEvery(Choice):
    """Play held-out episodes with the version of every n-th step.

    Also before the first step and after the last. The episodes are not trained on. By default the job's own
    environment is played with seeds that training does not use; if it has tasks, they are those that are
    trained on, which each evaluation states. Pass `split=` or `env_kwargs=` for other arguments, or name
    another environment of the service. Every row of a split is played once.

    Example:
        >>> held_out = tg.EvaluateEvery(20, split="test")
        >>> client.train("math/Arithmetic-v0", steps=200, evaluate=held_out)
    """

    steps: int = Field(ge=1)
    """Train steps between evaluations."""
    environment: str = Field("", max_length=200)
    """The id of another environment; empty for the job's own."""
    env_kwargs: dict[str, JsonValue] = {}
    """Overrides for the job's environment arguments."""
    episodes: int | None = Field(None, ge=1, le=MOST_EPISODES)
    """How many. In an environment with tasks, as many different tasks as that takes, the same at every
    evaluation; more than there are begin again with the first. None plays every task of a split once (10,000
    different ones if it has more), or of an environment with at most 64 tasks, and 64 episodes otherwise.
    Each has its own seed, the same at every evaluation. In a game whose policy can take several seats, the
    games are mirrored: one per seat with the same seed; the last such set is always completed."""
    samples: int = Field(1, ge=1, le=100)
    """Episodes of each task that is played: `episodes=64, samples=4` plays 16 tasks, each 4 times."""
    seed: int = Field(FIRST_HELD_OUT_SEED, ge=0, lt=2**32)
    """Seed of the first episode; the others count up."""
    temperature: float = Field(0.0, ge=0, le=10)
    """0 takes the likeliest token."""
    name: str = Field("", max_length=100)
    """The name in events and curves; by default the environment's id. Names must be unique."""
    agent: AgentId | None = None
    """In a game, the evaluated policy: a seat with `Train`. None is the first. It plays its own seats
    alternately."""
    against: FixedPlayer | None = None
    """In a game, the player of all other seats. None is the game's random player, or the base model if it has
    none."""
    patience: int | None = Field(None, ge=1)
    """End the job when this many evaluations in a row were no better than the best one before them."""
    target: float | None = None
    """End the job when the mean return is at least this."""
    _source: Callable[..., Any] | None = PrivateAttr(None)

    def __init__(
        self,
        steps: int | None = None,
        environment: str | type[Any] | Callable[..., Any] | None = None,
        /,
        *,
        split: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        """Set the interval and what to evaluate.

        Args:
            steps: Train steps between evaluations.
            environment: The id of an environment other than the job's. For SFT and preference jobs also a
                class or function: its episodes are played in the process that passes it.
            split: Short for `env_kwargs={"split": ...}`.
            env_kwargs: For the environment's constructor; JSON values.
            **settings: Any other field: episodes, samples, seed, temperature, name, patience, target.

        Raises:
            InvalidRequestError: A setting is invalid. The message says which, why and what to do.
        """
        source = environment
        if callable(environment):
            environment = local_id(environment)
        if environment is not None and not isinstance(environment, str):
            raise InvalidRequestError(
                f"pass another environment by its id or class, not as {type(environment).__name__}",
                hint="leave it out to play the job's own environment, with split= or env_kwargs= for other "
                "arguments",
                field="EvaluateEvery.environment",
            )
        positional = {"steps": steps, "environment": environment}
        settings = {name: value for name, value in positional.items() if value is not None} | settings
        if env_kwargs is not None or split is not None:
            settings["env_kwargs"] = dict(env_kwargs or {}) | ({} if split is None else {"split": split})
        super().__init__(**settings)
        if callable(source):
            self._source = source

    # As in `Choice`: nested settings are validated without this.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @property
    def source(self) -> Callable[..., Any] | None:
        """The class or function that was passed; it never leaves this process."""
        return self._source

    @property
    def is_local(self) -> bool:
        """Whether it names a class or function of a script, which the service cannot play."""
        return self.environment.startswith(LOCAL)

    @property
    def names_split(self) -> bool:
        """Whether it plays a split that it names."""
        return "split" in self.env_kwargs

    def tasks_played(self, tasks: int) -> list[int | None]:
        """Return the task of each episode, in order; None is drawn by the episode's seed.

        Args:
            tasks: How many the environment has; 0 for one without.
        """
        return tasks_played(
            tasks,
            episodes=self.episodes,
            samples=self.samples,
            names_split=self.names_split,
            usual=USUAL_EPISODES,
            seed=self.seed,
            most=MOST_EPISODES,
        )

    def draws_from_split(self, tasks: int) -> bool:
        """Whether it names a split of uncounted tasks, so that its episodes draw them by seed."""
        return self.names_split and not tasks

    def is_due(self, step: int, *, last: int) -> bool:
        """Whether the version of a step is evaluated.

        Step 0 is before the first, and `last` is the job's last.
        """
        return step % self.steps == 0 or step == last


class EvaluatedTasks(WireModel):
    """The tasks of an evaluation, as they were when the job was submitted."""

    tasks: int = Field(ge=1)
    trained_on: int | None = Field(None, ge=0)
    """How many of them, by content, are also tasks of the job's own environments; None if it is not known."""
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """The hash of the tasks; empty if they could not be hashed in time."""

    @property
    def overlap(self) -> float | None:
        """The share of tasks that are trained on."""
        return None if self.trained_on is None else self.trained_on / self.tasks
