"""The settings of an RL job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from tinkergym.schema.algorithms import GRPO, Algorithm
from tinkergym.schema.collapse_guard import CollapseGuard
from tinkergym.schema.jobs.common import FullParameters
from tinkergym.schema.jobs.played import PlayedSpec
from tinkergym.schema.jobs.seats import AgentName, SeatSettings, SharedWith, Train
from tinkergym.schema.names import REMOTE_ID
from tinkergym.schema.opponents import Base, External, FixedPlayer, Frozen, League, Replay, Scripted
from tinkergym.schema.seat_tools import SeatTools

_GROUPS = ("group_size", "groups_per_step")
"""Settings shared by all seats of a job, because they play the same episodes."""


class RLSpec(PlayedSpec):
    """A complete RL training request: the service needs nothing else to run the job."""

    kind: Literal["rl"] = "rl"
    algorithm: Algorithm = GRPO()
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

    @model_validator(mode="after")
    def _its_length_penalty_fits_into_an_answer(self) -> Self:
        if self.algorithm.overlong_tokens > self.sampling.max_turn_tokens:
            raise ValueError(
                f"algorithm has overlong_tokens={self.algorithm.overlong_tokens}, but a completion ends at "
                f"sampling.max_turn_tokens={self.sampling.max_turn_tokens}; lower it, or allow longer "
                f"completions"
            )
        begins = self.sampling.max_turn_tokens - self.algorithm.overlong_tokens
        most = self.limits.max_episode_tokens
        if self.algorithm.overlong_tokens and most is not None and most <= begins:
            raise ValueError(
                f"algorithm has overlong_tokens={self.algorithm.overlong_tokens}, which lowers the reward "
                f"of completions beyond {begins} tokens, but limits.max_episode_tokens={most} ends them "
                f"before; "
                "raise one of the two, or lower sampling.max_turn_tokens"
            )
        return self

    @model_validator(mode="after")
    def _its_groups_can_be_paid_together(self) -> Self:
        if self.group_rewards and self.deterministic:
            self._refuse(
                "group_rewards cannot be combined with deterministic=True: episodes are sampled in "
                "lockstep, and those waiting for their group would block the others; leave out deterministic"
            )
        if self.group_rewards and self.rollout == "script":
            self._refuse("group_rewards needs workers that play whole groups; a script plays one by one")
        if self.group_rewards and self.algorithm.group_size < 2:
            self._refuse(
                "group_rewards needs groups: the environment has a score_group, but algorithm.group_size is "
                f"{self.algorithm.group_size}; raise it"
            )
        return self

    @model_validator(mode="after")
    def _its_rate_is_reached(self) -> Self:
        self._refuse_endless_warmup(self.algorithm.warmup_steps)
        return self

    @model_validator(mode="after")
    def _staleness_can_be_allowed_for(self) -> Self:
        if not self.max_staleness:
            return self
        if self.deterministic:
            raise ValueError(
                "max_staleness must be 0 with deterministic=True: which version samples would depend on "
                "the learner's speed; remove one of the two"
            )
        if self.algorithm.loss == "reinforce" and self.algorithm.importance_correction == "none":
            raise ValueError(
                "max_staleness must be 0 with loss='reinforce', which assumes that every token was sampled "
                "by the policy being trained; choose another loss, such as 'ppo' or 'importance_sampling', "
                "or set "
                "importance_correction"
            )
        return self

    @property
    def kl_measured_every(self) -> int:
        """Interval in steps at which the KL to the initial policy is estimated; 0 means never."""
        if self.algorithm.kl_coefficient:
            return 0
        if self.kl_metric_every is not None:
            return self.kl_metric_every
        return 0 if isinstance(self.adapter, FullParameters) and self.initial_policy else 10

    @model_validator(mode="after")
    def _its_kl_is_measured_once(self) -> Self:
        self._refuse_idle(
            "kl_metric_every",
            bool(self.algorithm.kl_coefficient),
            "algorithm.kl_coefficient=0; with a penalty, the metric kl already covers every step",
        )
        return self

    @property
    def guard(self) -> CollapseGuard | None:
        """The guard's settings; None if it is off."""
        if not self.plays_game or self.collapse_guard is False:
            return None
        return CollapseGuard() if self.collapse_guard is True else self.collapse_guard

    @model_validator(mode="after")
    def _there_is_something_to_guard(self) -> Self:
        self._refuse_idle("collapse_guard", not self.plays_game, "agents or self_play")
        return self

    @field_validator("self_play", mode="before")
    @classmethod
    def _true_is_the_usual_league(cls, given: object) -> object:
        return League() if given is True else given

    @model_validator(mode="after")
    def _opponents_can_be_drawn(self) -> Self:
        trained = ", ".join(self.trained_agents) or "none"
        if self.agents and not self.trained_agents:
            self._refuse("agents has no seat with Train, so no policy would be trained")
        for agent, seat in self.agents.items():
            if not isinstance(seat, League):
                continue
            if seat.of is not None and seat.of not in self.trained_agents:
                self._refuse(
                    f"agents has a League of {seat.of!r} at {agent!r}, which is not a seat with Train; "
                    f"these are: {trained}"
                )
        if isinstance(self.self_play, League):
            if self.replayed_jobs:
                self._refuse("self_play draws opponents, but a Replay is always the same; remove one of them")
            if self.self_play.of is not None:
                self._refuse("self_play plays every seat with its own policy's versions; leave `of` out")
            if self.agents and len(self.learning_seats) < 2:
                self._refuse(
                    "self_play needs two trained seats; with one, give the others a League in agents"
                )
        return self

    @model_validator(mode="after")
    def _seats_can_be_trained(self) -> Self:
        for agent, seat in self.agents.items():
            if not isinstance(seat, Train):
                continue
            algorithm = seat.algorithm
            for name in _GROUPS:
                if algorithm is None:
                    break
                own, jobs = getattr(algorithm, name), getattr(self.algorithm, name)
                if own not in (type(algorithm).model_fields[name].default, jobs):
                    self._refuse(
                        f"agents has {agent!r} with algorithm.{name}={own}, and the job {jobs}: all seats "
                        f"play the same episodes; set it in the job's algorithm"
                    )
            self._refuse_unequal_rounds(agent)
        return self

    @model_validator(mode="after")
    def _several_models_can_be_served(self) -> Self:
        for model, agent in self.other_models.items():
            if self.deterministic:
                self._refuse(
                    f"deterministic cannot be True while agents has {agent!r} with model={model!r} and the "
                    f"job {self.model!r}: lockstep needs a single base model; leave out one of them"
                )
            if self.chat_template:
                self._refuse(
                    f"chat_template cannot be set while agents has {agent!r} with model={model!r}, which "
                    f"has its own template; leave out one of them"
                )
        return self

    def _refuse_unequal_rounds(self, agent: str) -> None:
        algorithm, sampling = self.for_agent(agent).algorithm, self.for_agent(agent).sampling
        if algorithm.minibatches > algorithm.groups_per_step:
            self._refuse(f"agents has {agent!r} with more minibatches than the job's groups_per_step")
        if algorithm.dynamic_sampling_rounds != self.algorithm.dynamic_sampling_rounds:
            self._refuse(
                f"agents has {agent!r} with dynamic_sampling_rounds different from the job's; set them in "
                f"both, or "
                "in neither"
            )
        self._refuse_unequal_replacements(agent)
        if algorithm.compares_siblings and algorithm.group_size < 2:
            self._refuse(
                f"agents has {agent!r} with an algorithm that compares episodes with their group, but the "
                f"job's groups have one episode; raise algorithm.group_size"
            )
        if algorithm.overlong_tokens > sampling.max_turn_tokens:
            self._refuse(f"agents has {agent!r} with overlong_tokens above its max_turn_tokens; lower them")
        if self.max_staleness and algorithm.loss == "reinforce" and algorithm.importance_correction == "none":
            self._refuse(
                f"agents has {agent!r} with loss='reinforce', which needs max_staleness=0 or an "
                "importance_correction"
            )
        if algorithm.warmup_steps >= self.steps:
            self._refuse(f"agents has {agent!r} with warmup_steps not below steps={self.steps}; lower it")

    def _refuse_unequal_replacements(self, agent: str) -> None:
        """Whether a group taught nothing is decided once, for all of its seats."""
        if not self.algorithm.dynamic_sampling_rounds:
            return
        own = self.for_agent(agent)
        names = ["credit", "discount", "overlong_tokens", "overlong_penalty"]
        for name in names:
            theirs, jobs = (getattr(one, name, None) for one in (own.algorithm, self.algorithm))
            if theirs != jobs:
                self._refuse(
                    f"agents has {agent!r} with algorithm.{name}={theirs!r}, and the job {jobs!r}: "
                    f"dynamic_sampling_rounds replaces a group for all seats; use the same {name}"
                )
        if own.algorithm.overlong_tokens and own.sampling.max_turn_tokens != self.sampling.max_turn_tokens:
            self._refuse(
                f"agents has {agent!r} with a sampling.max_turn_tokens different from the job's, which "
                f"overlong_tokens counts from, while dynamic_sampling_rounds replaces a group for all seats; "
                f"use the same"
            )

    @model_validator(mode="after")
    def _evaluations_have_seats(self) -> Self:
        for one in self.evaluate:
            if not self.plays_game:
                if one.agent or one.against is not None:
                    self._refuse("evaluate has `agent` or `against`, which only take effect with agents")
                continue
            if one.environment not in ("", self.environment.id):
                self._refuse("evaluate cannot name another environment if the agents of a game are trained")
            if one.agent and self.agents and one.agent not in self.trained_agents:
                self._refuse(
                    f"evaluate names the agent {one.agent!r}, which is not a seat with Train; these are: "
                    f"{', '.join(self.trained_agents)}"
                )
        return self

    @model_validator(mode="after")
    def _a_failed_game_trains_nothing(self) -> Self:
        if self.plays_game and self.on_failure == "keep":
            self._refuse(
                "on_failure cannot be 'keep' with agents or self_play: a failure at one seat ends the game "
                "for all, so the others' rewards are meaningless; choose 'drop' or 'retry:N'"
            )
        return self

    @model_validator(mode="after")
    def _tools_can_be_called(self) -> Self:
        with_tools = next((agent for agent in self.trained_agents if self.tools_of(agent) is not None), None)
        if with_tools is None:
            return self
        if self.rollout == "script":
            self._refuse(f"agents has {with_tools!r} with tools, which a script calls itself; leave them out")
        if self.environment.id == REMOTE_ID or "://" in self.environment.id:
            self._refuse(f"agents has {with_tools!r} with tools, which a game behind a server does not offer")
        return self

    @model_validator(mode="after")
    def _external_models_can_be_asked(self) -> Self:
        models = self.external_models
        if models and self.deterministic:
            self._refuse(
                "deterministic cannot be True with a tg.opponents.External, which answers differently each "
                "time; leave out one of them"
            )
        if models and (self.environment.id == REMOTE_ID or "://" in self.environment.id):
            self._refuse(
                "agents cannot have a tg.opponents.External in a game on a server; use the game from an "
                "installed pack"
            )
        most = self._seconds_of_external_answers
        if models and most >= self.limits.step_timeout_seconds:
            names = " and ".join(dict.fromkeys(repr(one.model) for one in models))
            self._refuse(
                f"limits has step_timeout_seconds={self.limits.step_timeout_seconds:g}, which must be above "
                f"the {most:g} s that the External players ({names}) of one game may take for their "
                f"answers: all of them may answer within a step; raise it or lower their timeout_seconds"
            )
        return self

    @property
    def _seconds_of_external_answers(self) -> float:
        """The most that one answer of each external player of a game may take together."""

        def longest(players: Iterable[object]) -> float:
            return max((one.timeout_seconds for one in players if isinstance(one, External)), default=0.0)

        others = max(len(self.agents) - 1, 1)
        of_seats = sum(
            longest(seat.anchors or () if isinstance(seat, League) else [seat])
            for seat in self.agents.values()
        )
        if isinstance(self.self_play, League):
            of_seats = max(of_seats, others * longest(self.self_play.anchors or ()))
        return max(of_seats, others * longest(one.against for one in self.evaluate))

    @model_validator(mode="after")
    def _recorded_games_are_played_again(self) -> Self:
        if self.replayed_jobs and self.rollout != "server":
            self._refuse("agents has a Replay, whose record is stored in the service; leave out rollout")
        if self.replayed_jobs and (self.environment.id == REMOTE_ID or "://" in self.environment.id):
            self._refuse(
                "agents cannot have a Replay in a game on a server; use the game from an installed pack"
            )
        if self.replayed_jobs and self.algorithm.dynamic_sampling_rounds:
            self._refuse("agents has a Replay, whose groups are fixed; leave out dynamic_sampling_rounds")
        return self

    @model_validator(mode="after")
    def _updates_take_effect(self) -> Self:
        chosen = self.updates
        if chosen == "all":
            return self
        several = len(self.trained_agents) > 1 or (isinstance(self.self_play, League) and not self.agents)
        if not several or not self.plays_game:
            self._refuse("updates only takes effect if several policies are trained; leave it out")
        only = chosen.partition(":")[2] if chosen.startswith("only:") else None
        if only is not None and only not in self.trained_agents:
            self._refuse(
                f"updates names {only!r}, which is not a seat with Train; these are: "
                f"{', '.join(self.trained_agents)}"
            )
        return self

    def updated_at(self, step: int) -> tuple[str, ...]:
        """Return the agents whose policies learn in a train step."""
        agents, (chosen, _, detail) = self.trained_agents, self.updates.partition(":")
        if chosen == "alternate":
            return (agents[(step - 1) // int(detail or 1) % len(agents)],)
        return (detail,) if chosen == "only" else agents

    @model_validator(mode="after")
    def _seats_can_be_played(self) -> Self:
        for agent, seat in self.agents.items():
            if isinstance(seat, SharedWith) and not isinstance(self.agents.get(seat.agent), Train):
                trained = ", ".join(self.trained_agents) or "none"
                self._refuse(
                    f"agents has {agent!r} shared with {seat.agent!r}, which is not a seat with Train; "
                    f"these are: {trained}"
                )
        if self.plays_game and self.environments:
            self._refuse(
                f"environments cannot be {self.environments!r:.200} with agents; leave out one of them"
            )
        return self

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
        own = [self.self_play] if isinstance(self.self_play, League) else []
        return own + [seat for seat in self.agents.values() if isinstance(seat, League)]

    def seated(self, agents: Sequence[str], offered: Sequence[str]) -> Self:
        """Return the job with game-dependent settings: its agents in self-play, and default anchors.

        Args:
            agents: All agents of the game.
            offered: The names of the players that it offers.
        """
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

    @property
    def opponent_policies(self) -> list[str]:
        """References to the policies of other jobs that play seats."""
        return list(dict.fromkeys(one.policy for one in self._fixed_players if isinstance(one, Frozen)))

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
            name: value
            for name in ("model", "adapter", "system_prompt", "sampling", "initial_policy")
            if (value := getattr(seat, name)) is not None
        }
        if seat.algorithm is not None:
            groups = {name: getattr(self.algorithm, name) for name in _GROUPS}
            changes["algorithm"] = seat.algorithm.model_copy(update=groups)
        return self.model_copy(update=changes) if changes else self

    @property
    def episodes_per_step(self) -> int:
        """How many episodes one train step asks for."""
        return self.algorithm.group_size * self.algorithm.groups_per_step

    @property
    def most_episodes_per_step(self) -> int:
        """The most episodes of one train step, if each round of dynamic sampling replaces every group."""
        return self.episodes_per_step * (1 + self.algorithm.dynamic_sampling_rounds)


def _with_anchors(league: League, offered: Sequence[str]) -> League:
    """Return the league with default anchors if it names none: the random player or the base model."""
    if league.anchors is not None or not league.anchor_share:
        return league
    anchor = Scripted(name="random") if "random" in offered else Base()
    return league.model_copy(update={"anchors": [anchor]})
