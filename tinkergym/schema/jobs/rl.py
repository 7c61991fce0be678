"""The settings of an RL job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, field_validator

from tinkergym.schema.algorithm_registry import Algorithm, default_algorithm, packs_of
from tinkergym.schema.fixed_players import Base, External, FixedPlayer, Frozen, League, Replay, Scripted
from tinkergym.schema.jobs.parts import CollapseGuard, FullParameters, Groups
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.rules.episode_rules import PLAYED, RL
from tinkergym.schema.jobs.rules.evaluation_rules import EVALUATED
from tinkergym.schema.jobs.rules.game_rules import GAME
from tinkergym.schema.jobs.rules.policy_rules import GROUPS, POLICIES
from tinkergym.schema.jobs.seats import AgentName, SeatSettings, SharedWith, Train
from tinkergym.schema.refusals import Refusal
from tinkergym.schema.seat_tools import SeatTools

_OF_A_SEAT = ("model", "adapter", "system_prompt", "sampling", "initial_policy", "template_variables")
"""Settings that a seat may have in place of the job's."""


class RLSpec(PlayedSpec):
    """A complete RL training request: the service needs nothing else to run the job."""

    rules = (EVALUATED, PLAYED, RL, GAME, POLICIES)
    kind: Literal["rl"] = "rl"
    algorithm: Algorithm = Field(default_factory=default_algorithm)
    agents: dict[AgentName, SeatSettings] = Field({}, max_length=64)
    """Who plays each seat of a game, by agent id. Empty for an environment with one agent."""
    self_play: bool | League = False
    """One policy plays all seats of a game and learns from each. In a fraction of the groups its opponents
    are fixed anchors and past versions. True means `League()`. With `agents`, this applies to their
    policies."""
    updates: str = Field("all", pattern=r"^(all|alternate(:[1-9][0-9]{0,5})?|only:[^@/\s]+)$", max_length=120)
    """Which policies of a game's agents learn in a step: `all`; `alternate`, one after the other for one step
    each, or for ten with `alternate:10`; or `only:AGENT`. The others keep playing unchanged."""
    collapse_guard: bool | CollapseGuard = True
    """Whether games are watched for signs of collapse. Each sign causes a warning that names the last good
    version. True means `CollapseGuard()`."""
    group_rewards: bool = False
    """Whether the environment scores the episodes of a group together (`score_group`); set by the client or
    the service, whichever creates the environment first."""
    kl_metric_every: int | None = Field(None, ge=0)
    """Interval in steps at which the KL to the initial policy is estimated for a job without a KL penalty, as
    the metric `kl`; 0 disables it. None is 10, but 0 if a second model would have to be loaded for it."""
    shuffle_rewards: bool = False
    """A control experiment: permute the returns within each step, those of each environment and seat
    separately, so that nothing can be learned."""
    max_staleness: int = Field(0, ge=0, le=8)
    """How many versions may lie between the policy that sampled a token and the one that trains on it. 0 is
    synchronous: a step's episodes begin when the previous step is done. With more, episodes are played up to
    this many steps ahead, each completion by the newest version at the time of the request."""

    def algorithm_packs(self) -> dict[str, str]:
        """Return the packs that bring its policies' algorithms, with their versions."""
        return packs_of(self.for_agent(agent).algorithm for agent in self.trained_agents)

    @property
    def kl_measured_every(self) -> int:
        """Interval in steps at which the KL to the initial policy is estimated; 0 means never."""
        if self.algorithm.kl_coefficient:
            return 0
        if self.kl_metric_every is not None:
            return self.kl_metric_every
        return 0 if isinstance(self.adapter, FullParameters) and self.initial_policy else 10

    @property
    def guard(self) -> CollapseGuard | None:
        """The guard's settings; None if it is off."""
        if not self.plays_game or self.collapse_guard is False:
            return None
        return CollapseGuard() if self.collapse_guard is True else self.collapse_guard

    @field_validator("self_play", mode="before")
    @classmethod
    def _true_is_the_usual_league(cls, given: object) -> object:
        return League() if given is True else given

    @property
    def seconds_of_external_answers(self) -> float:
        """The most that one answer of each external player of a game may take together."""
        others = max(len(self.agents) - 1, 1)
        of_seats = sum(
            _longest(seat.anchors or () if isinstance(seat, League) else [seat])
            for seat in self.agents.values()
        )
        if isinstance(self.self_play, League):
            of_seats = max(of_seats, others * _longest(self.self_play.anchors or ()))
        return max(of_seats, others * _longest(one.against for one in self.evaluate))

    @property
    def trains_several(self) -> bool:
        """Whether several policies of a game are trained."""
        several = len(self.trained_agents) > 1 or not self.agents
        return self.plays_game and several

    @property
    def update_order(self) -> tuple[str, str]:
        """What `updates` chooses, and the number or agent written after it: `("only", "black")`."""
        chosen, _, detail = self.updates.partition(":")
        return chosen, detail

    def updated_at(self, step: int) -> tuple[str, ...]:
        """Return the agents whose policies learn in a train step."""
        agents, (chosen, detail) = self.trained_agents, self.update_order
        if chosen == "alternate":
            return (agents[(step - 1) // int(detail or 1) % len(agents)],)
        return (detail,) if chosen == "only" else agents

    @property
    def trained_agents(self) -> tuple[str, ...]:
        """The agents with their own policy; the agent of a single policy is ""."""
        if not self.agents:
            return ("",)
        return tuple(agent for agent, seat in self.agents.items() if isinstance(seat, Train))

    @property
    def other_models(self) -> dict[str, str]:
        """The base models besides the job's own, each with the first agent whose policy uses it."""
        own = {agent: self.for_agent(agent).model for agent in reversed(self.trained_agents)}
        return {model: agent for agent, model in own.items() if model != self.model}

    @property
    def learning_seats(self) -> tuple[str, ...]:
        """The agents whose seats are trained on: those with their own or a shared policy."""
        return tuple(agent for agent, seat in self.agents.items() if isinstance(seat, Train | SharedWith))

    def policy_at(self, agent: str) -> str:
        """Return whose policy plays a trained seat."""
        seat = self.agents[agent]
        return seat.agent if isinstance(seat, SharedWith) else agent

    @property
    def leagues(self) -> list[League]:
        """All leagues that the job draws opponents from."""
        own = [self.own_league] if self.own_league else []
        return own + [seat for seat in self.agents.values() if isinstance(seat, League)]

    def seated(self, agents: Sequence[str], offered: Sequence[str]) -> Self:
        """Return the job with what depends on its game: its agents in self-play, and default anchors."""
        if not self.plays_game:
            return self
        changes: dict[str, Any] = {}
        if isinstance(self.self_play, League):
            changes["self_play"] = _with_anchors(self.self_play, offered)
            if not self.agents:
                first, *others = agents
                shared = {agent: SharedWith(agent=first) for agent in others}
                changes["agents"] = {first: Train(), **shared}
        seats: dict[str, Any] = changes.get("agents", self.agents)
        if any(isinstance(seat, League) for seat in seats.values()):
            changes["agents"] = {
                agent: _with_anchors(seat, offered) if isinstance(seat, League) else seat
                for agent, seat in seats.items()
            }
        if self.evaluate:
            usual: FixedPlayer = Scripted(name="random") if "random" in offered else Base()
            changes["evaluate"] = [
                one if one.against is not None else one.model_copy(update={"against": usual})
                for one in self.evaluate
            ]
        if not changes:
            return self
        # Checked again: the game's agent ids may be invalid as names of policies.
        return type(self).model_validate(self.model_copy(update=changes).model_dump())

    @property
    def beginnings(self) -> dict[str, str]:
        """The starting point of each trained policy, by agent.

        Policies that start from the base model are left out.
        """
        own = {agent: self.for_agent(agent).initial_policy for agent in self.trained_agents}
        return {agent: policy for agent, policy in own.items() if policy}

    def tools_of(self, agent: str) -> SeatTools | None:
        """Return the tools that the policy of one of the `trained_agents` may call before it moves."""
        seat = self.agents.get(agent)
        return seat.tools if isinstance(seat, Train) else None

    @property
    def replayed_jobs(self) -> dict[str, str]:
        """The jobs whose recorded actions play seats, by agent."""
        return {agent: seat.job for agent, seat in self.agents.items() if isinstance(seat, Replay)}

    def with_players(self, change: Callable[[FixedPlayer, str], FixedPlayer]) -> Self:
        """Return the job with each fixed player changed, who is given with the setting that names it."""

        def changed(one: Any, field: str) -> Any:
            if isinstance(one, League):
                anchors = [change(anchor, field) for anchor in one.anchors or ()]
                return one.model_copy(update={"anchors": anchors}) if anchors else one
            return (
                one
                if one in (None, False) or isinstance(one, Train | SharedWith | Replay)
                else change(one, field)
            )

        against = [changed(one.against, "evaluate.against") for one in self.evaluate]
        return self.model_copy(
            update={
                "agents": {agent: changed(one, f"agents.{agent}") for agent, one in self.agents.items()},
                "self_play": changed(self.self_play, "self_play"),
                "evaluate": [
                    one.model_copy(update={"against": its})
                    for one, its in zip(self.evaluate, against, strict=True)
                ],
            }
        )

    @property
    def external_models(self) -> list[External]:
        """The external models that play seats."""
        return [one for one in self._fixed_players if isinstance(one, External)]

    @property
    def _fixed_players(self) -> list[SeatSettings | FixedPlayer]:
        fixed: list[SeatSettings | FixedPlayer] = list(self.agents.values())
        fixed += [one.against for one in self.evaluate if one.against is not None]
        return fixed + [anchor for league in self.leagues for anchor in league.anchors or ()]

    @property
    def plays_game(self) -> bool:
        """Whether the job trains the agents of a game, rather than in an environment with one agent."""
        return bool(self.agents) or isinstance(self.self_play, League)

    def for_agent(self, agent: str) -> Self:
        """Return the settings that apply to the policy of one of the `trained_agents`."""
        seat = self.agents.get(agent)
        if not isinstance(seat, Train):
            return self
        changes: dict[str, Any] = {
            name: value for name in _OF_A_SEAT if (value := getattr(seat, name)) is not None
        }
        if "model" in changes or "template_variables" in changes:
            changes["template_sha256"] = ""  # It is that of the job's own model and variables.
        if seat.algorithm is not None:
            groups = {name: getattr(self.algorithm, name) for name in GROUPS}
            changes["algorithm"] = seat.algorithm.model_copy(update=groups)
        return self.model_copy(update=changes) if changes else self

    @property
    def groups(self) -> Groups:
        """The episodes of a train step."""
        algorithm = self.algorithm
        return Groups(algorithm.groups_per_step, algorithm.group_size, algorithm.replacement_rounds)

    @property
    def step_work(self) -> tuple[object, ...]:
        """Also what is computed of each episode."""
        algorithm = self.algorithm
        updates = (algorithm.updates_per_step, algorithm.minibatches)
        compared = (algorithm.kl_coefficient > 0, self.kl_metric_every)
        return *super().step_work, type(algorithm), *updates, *compared

    @property
    def has_value_head(self) -> bool:
        """Whether the algorithm trains a value head with the policy."""
        return self.algorithm.head_learning_rate is not None

    @property
    def versions_ahead(self) -> int:
        """As `max_staleness`."""
        return self.max_staleness

    @property
    def scored_by_group(self) -> bool:
        """As `group_rewards`."""
        return self.group_rewards

    @property
    def seats(self) -> Mapping[str, SeatSettings]:
        """As `agents`."""
        return self.agents

    @property
    def masks_truncated(self) -> bool:
        """As `algorithm.mask_truncated`."""
        return self.algorithm.mask_truncated

    @property
    def own_league(self) -> League | None:
        """As `self_play`."""
        return self.self_play if isinstance(self.self_play, League) else None

    def references(self) -> dict[str, str]:
        """Return the policies and jobs that it names, by setting."""
        named = super().references()
        named |= {
            f"agents.{agent}.initial_policy": policy for agent, policy in self.beginnings.items() if agent
        }
        named |= {f"agents.{agent}.job": job for agent, job in self.replayed_jobs.items()}
        frozen = dict.fromkeys(one.policy for one in self._fixed_players if isinstance(one, Frozen))
        return named | {f"opponents.{number}": policy for number, policy in enumerate(frozen)}

    def with_group_rewards(self, pays_groups: bool) -> Self | Refusal:
        """Return the job with a note of whether its environment scores groups together."""
        scores = "the environment scores the episodes of a group together (score_group)"
        if pays_groups and self.groups.size < 2:
            reason, hint = f"{scores}, but groups have only one", "raise algorithm.group_size"
            return Refusal("algorithm.group_size", reason, hint, "group_rewards_without_groups")
        if pays_groups and self.deterministic:
            return Refusal(
                "deterministic",
                f"{scores}, and those waiting for their group would block the others, which "
                "deterministic=True samples in lockstep",
                "remove deterministic, or score each episode separately",
                "group_rewards_in_lockstep",
            )
        return self.model_copy(update={"group_rewards": pays_groups})

    def scripted_players(self) -> list[tuple[str, str]]:
        """Return every agent that a game's own player may play, with that player's name."""
        first = next(iter(self.learning_seats), None)
        drawn = [(agent, seat) for agent, seat in self.agents.items() if isinstance(seat, League)]
        drawn += [(first or "self_play", self.own_league)] if self.own_league else []
        players: list[tuple[str, object]] = list(self.agents.items())
        players += [(first or "evaluate", one.against) for one in self.evaluate]
        players += [(agent, anchor) for agent, league in drawn for anchor in league.anchors or ()]
        return [(agent, one.name) for agent, one in players if isinstance(one, Scripted)]


def _longest(players: Iterable[object]) -> float:
    return max((one.timeout_seconds for one in players if isinstance(one, External)), default=0.0)


def _with_anchors(league: League, offered: Sequence[str]) -> League:
    """Return the league with default anchors if it names none: the random player or the base model."""
    if league.anchors is not None or not league.anchor_share:
        return league
    anchor = Scripted(name="random") if "random" in offered else Base()
    return league.model_copy(update={"anchors": [anchor]})
