"""What any kind of job can be asked. Kinds override the answers that differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Self

from tinkergym.schema.decoding import Decoding
from tinkergym.schema.evaluate_every import EvaluatedTasks, EvaluateEvery
from tinkergym.schema.fixed_players import External, FixedPlayer, League
from tinkergym.schema.jobs.parts import CollapseGuard
from tinkergym.schema.jobs.seats import SeatSettings
from tinkergym.schema.seat_tools import SeatTools


class DefaultAnswers:
    """The answers of a job without evaluations, datasets, games or stale tokens."""

    by_calls: ClassVar[bool] = False
    """Whether its client's calls train the policy, without train steps of its own."""
    samples_only: ClassVar[bool] = False
    """Whether it trains nothing."""

    @property
    def row_decoding(self) -> Decoding | None:
        """How completions of a dataset's rows are drawn, if the job samples those."""
        return None

    @property
    def other_models(self) -> dict[str, str]:
        """The base models besides the job's own, each with the first agent whose policy uses it."""
        return {}

    def algorithm_packs(self) -> dict[str, str]:
        """Return the packs that bring its algorithms, with their versions."""
        return {}

    @property
    def evaluations(self) -> list[EvaluateEvery]:
        """The evaluations during training."""
        return []

    def known_tasks(self) -> Mapping[str, EvaluatedTasks]:
        """Return what is known of the tasks of its evaluations, by their names."""
        return {}

    @property
    def datasets(self) -> dict[str, str]:
        """The uploaded datasets that it uses, by setting."""
        return {}

    @property
    def records_per_step(self) -> int:
        """The records of datasets that a step trains on."""
        return 0

    @property
    def sampled_policy(self) -> str:
        """The trained policy that it samples without training it; empty for none."""
        return ""

    @property
    def completions_per_record(self) -> int:
        """The completions that it returns for each record of its dataset."""
        return 0

    def with_records(self, records: int) -> Self:
        """Return the job with what follows from the size of its dataset."""
        del records
        return self

    @property
    def has_value_head(self) -> bool:
        """Whether a value head is trained with the policy."""
        return False

    @property
    def seats(self) -> Mapping[str, SeatSettings]:
        """Who plays each seat of a game, by agent; empty if it trains in no game."""
        return {}

    @property
    def plays_game(self) -> bool:
        """Whether the job trains the agents of a game, rather than in an environment with one agent."""
        return False

    @property
    def learning_seats(self) -> tuple[str, ...]:
        """The agents of a game whose seats are trained on: those with their own or a shared policy."""
        return ()

    def policy_at(self, agent: str) -> str:
        """Return whose policy plays a trained seat."""
        return agent

    def tools_of(self, agent: str) -> SeatTools | None:
        """Return the tools that the policy of one of the `trained_agents` may call before it moves."""
        del agent
        return None

    def with_players(self, change: Callable[[FixedPlayer, str], FixedPlayer]) -> Self:
        """Return the job with each fixed player changed, who is given with the setting that names it."""
        del change
        return self

    @property
    def external_models(self) -> list[External]:
        """The external models that play seats."""
        return []

    @property
    def versions_ahead(self) -> int:
        """How many versions may lie between the policy that samples a token and the one that learns."""
        return 0

    @property
    def scored_by_group(self) -> bool:
        """Whether the environment scores the episodes of a group together."""
        return False

    @property
    def masks_truncated(self) -> bool:
        """Whether completions that a limit cut off are not trained on."""
        return False

    @property
    def own_league(self) -> League | None:
        """The league from which self-play draws the opponents of the job's own policies."""
        return None

    @property
    def leagues(self) -> list[League]:
        """All leagues that the job draws opponents from."""
        return []

    @property
    def guard(self) -> CollapseGuard | None:
        """What watches its games for signs of collapse; None if nothing does."""
        return None

    def scripted_players(self) -> list[tuple[str, str]]:
        """Return every agent that a game's own player may play, with that player's name."""
        return []
