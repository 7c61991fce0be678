"""What a job's settings must be to each other, as tables: a code, a condition, a refusal.

Bounds of a single setting stand with it. `{job}` in a text is the job, `{found}` what the condition found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tinkergym.schema.mixtures import names_of
from tinkergym.schema.names import is_remote
from tinkergym.schema.refusals import Refusal, no_effect

GROUPS = ("group_size", "groups_per_step")
"""Settings shared by all seats of a job, because they play the same episodes."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition that no job may meet, and the refusal of one that does."""

    code: str
    condition: Callable[[Any], object]
    """Given a job, returns what is wrong with it; anything false if nothing is."""
    field: str
    reason: str
    hint: str = ""

    def refusal(self, job: object) -> Refusal | None:
        """Return why the job is refused; None if it is not."""
        found = self.condition(job)
        if not found:
            return None
        field, reason, hint = (
            text.format(job=job, found=found) for text in (self.field, self.reason, self.hint)
        )
        return Refusal(field, reason, hint, self.code)


def refusal_of(job: object, rules: Iterable[Rule]) -> Refusal | None:
    """Return the first refusal of a job; None if it breaks no rule."""
    return next((refusal for rule in rules if (refusal := rule.refusal(job))), None)


def _idle(field: str, is_idle: Callable[[Any], object], wanted: str) -> Rule:
    text = no_effect(field, wanted)
    return Rule(text.code, lambda job: is_idle(job) and job.is_chosen(field), field, text.reason, text.hint)


_ENDLESS_WARMUP = Rule(
    "endless_warmup",
    lambda job: job.warmup_steps >= job.steps,
    "warmup_steps",
    "must be below steps={job.steps}, or learning_rate is never reached",
    "lower it, or train longer",
)


def _first(found: Iterable[Any]) -> Any:
    return next(iter(found), None)


def _twice(names: list[str]) -> Any:
    return _first(name for name in names if names.count(name) > 1)


def _without_environment(job: Any) -> bool:
    return not job.own_environments and any(not one.environment for one in job.evaluate)


def _of_another_script(job: Any) -> bool:
    own = {ref.id for ref in job.own_environments.values()}
    return bool(own) and any(one.is_local and one.environment not in own for one in job.evaluate)


def _on_both_sides(job: Any) -> bool:
    return not job.own_environments and len({one.is_local for one in job.evaluate}) > 1


def _at_another_server(job: Any) -> bool:
    remote = [one for one in job.evaluations if job.environment_of(one).is_remote]
    return any({"url", "token"} & set(one.env_kwargs) for one in remote)


def _that_may_end_the_job(job: Any) -> str:
    own = job.own_environments
    ending = [one for one in job.evaluate if one.patience is not None or one.target is not None]
    return ", ".join(own) if len(own) > 1 and any(not one.environment for one in ending) else ""


def _evaluation_names(job: Any) -> list[str]:
    return [job.name_of(one) for one in job.evaluations]


def _best_by_none(job: Any) -> str:
    if not job.best_by or job.named_by_best_by is not None:
        return ""
    return ", ".join(map(repr, _evaluation_names(job))) or "those in evaluate"


EVALUATED = (
    Rule(
        "evaluation_without_environment",
        _without_environment,
        "evaluate",
        "must name an environment, because this job plays none itself",
    ),
    Rule(
        "evaluation_of_another_script",
        _of_another_script,
        "evaluate",
        "must name the job's own environment or one of the service, because the workers that play this job "
        "have no other",
    ),
    Rule(
        "evaluations_on_both_sides",
        _on_both_sides,
        "evaluate",
        "mixes environments of the script and of the service",
        "use one kind in a job",
    ),
    Rule(
        "evaluation_at_an_address",
        lambda job: any(is_remote(one.environment) for one in job.evaluate),
        "evaluate",
        "must name an environment of the service, not an address",
    ),
    Rule(
        "evaluation_at_another_server",
        _at_another_server,
        "evaluate",
        "uses the job's own environment server",
        "leave url and token out of its env_kwargs",
    ),
    Rule(
        "several_environments_end_the_job",
        _that_may_end_the_job,
        "evaluate",
        "has patience or target for several environments at once",
        "name the one that may end the job: {found}",
    ),
    Rule(
        "evaluations_with_one_name",
        lambda job: _twice(_evaluation_names(job)),
        "evaluate",
        "has two evaluations named {found!r}",
        "set a different name= on each",
    ),
    Rule(
        "unknown_best_by",
        _best_by_none,
        "best_by",
        "does not name an evaluation",
        "write NAME or NAME/METRIC with one of {found}",
    ),
)

DATASET = (
    Rule(
        "two_evaluation_sets",
        lambda job: job.eval_data is not None and job.held_out,
        "held_out",
        "cannot be given with eval_data",
        "set only one of them",
    ),
    _idle("eval_every", lambda job: job.eval_data is None and not job.held_out, "eval_data or held_out"),
    _ENDLESS_WARMUP,
)

DISTILLATION = (_ENDLESS_WARMUP,)


def _not_at_the_client(job: Any) -> Any:
    own = ("", *job.own_environments)
    if job.rollout != "client":
        return None
    return _first(one.environment for one in job.evaluate if one.environment not in own)


PLAYED = (
    Rule(
        "one_of_several_environments",
        lambda job: len(job.environments) == 1,
        "environments",
        "needs at least two entries",
        "pass a single one as `environment`",
    ),
    Rule(
        "not_the_first_environment",
        lambda job: job.environments and job.environment != job.environments[0].ref,
        "environment",
        "must be the first of environments",
        "leave it out",
    ),
    Rule(
        "environment_twice",
        lambda job: _twice(names_of([(one.id, one.kwargs) for one in job.environments])),
        "environments",
        "has {found!r} twice",
        "add up their weights, or give them different kwargs",
    ),
    Rule(
        "environments_of_a_script",
        lambda job: job.environments and job.rollout == "script",
        "environments",
        "must be empty if a script plays, because the script chooses what it plays",
    ),
    Rule(
        "executor_without_processes",
        lambda job: job.executor == "process" and (job.deterministic or job.rollout == "script"),
        "executor",
        "cannot be 'process' with deterministic=True or if a script plays",
        "choose 'thread', or remove the other setting",
    ),
    Rule(
        "script_cannot_retry",
        lambda job: job.retries and job.rollout == "script",
        "on_failure",
        "cannot be 'retry' if a script plays",
        "catch the error in the script, or choose 'drop' or 'keep'",
    ),
    _idle(
        "client_timeout_seconds",
        lambda job: job.rollout == "server",
        "rollout='client' or if a script plays",
    ),
    Rule(
        "script_cannot_evaluate",
        lambda job: job.evaluate and job.rollout == "script",
        "evaluate",
        "needs rollout='server' or 'client'",
        "a script that plays can call job.policy().evaluate(...) itself",
    ),
    Rule(
        "client_has_no_such_environment",
        _not_at_the_client,
        "evaluate",
        "names {found!r}, but with rollout='client' only the job's own environment is played",
        "leave it out, or call job.policy().evaluate(...) yourself",
    ),
)


def _unreachable_overlong(job: Any) -> int:
    begins = job.sampling.max_turn_tokens - job.algorithm.overlong_tokens
    most = job.limits.max_episode_tokens
    return int(begins) if job.algorithm.overlong_tokens and most is not None and most <= begins else 0


def _assumes_fresh_tokens(algorithm: Any) -> bool:
    return bool(algorithm.loss == "reinforce" and algorithm.importance_correction == "none")


RL = (
    Rule(
        "overlong_tokens_never_reached",
        _unreachable_overlong,
        "algorithm.overlong_tokens",
        "lowers the reward of completions beyond {found} tokens, but "
        "limits.max_episode_tokens={job.limits.max_episode_tokens} ends them before",
        "raise one of the two, or lower sampling.max_turn_tokens",
    ),
    Rule(
        "group_rewards_in_lockstep",
        lambda job: job.group_rewards and job.deterministic,
        "group_rewards",
        "cannot be combined with deterministic=True: episodes are sampled in lockstep, and those waiting for "
        "their group would block the others",
        "leave out deterministic",
    ),
    Rule(
        "group_rewards_of_a_script",
        lambda job: job.group_rewards and job.rollout == "script",
        "group_rewards",
        "needs workers that play whole groups",
        "a script plays one episode at a time",
    ),
    Rule(
        "group_rewards_without_groups",
        lambda job: job.group_rewards and job.algorithm.group_size < 2,
        "group_rewards",
        "needs groups: the environment has a score_group, but algorithm.group_size is "
        "{job.algorithm.group_size}",
        "raise it",
    ),
    Rule(
        "stale_in_lockstep",
        lambda job: job.max_staleness and job.deterministic,
        "max_staleness",
        "must be 0 with deterministic=True: which version samples would depend on the learner's speed",
        "remove one of the two",
    ),
    _idle(
        "kl_metric_every",
        lambda job: job.algorithm.kl_coefficient,
        "algorithm.kl_coefficient=0, as with a penalty the metric kl already covers every step",
    ),
    _idle("collapse_guard", lambda job: not job.plays_game, "agents or self_play"),
)


def _seats(job: Any, kind: str) -> Iterator[tuple[str, Any]]:
    return ((agent, seat) for agent, seat in job.agents.items() if seat.kind == kind)


def _names_no_policy(job: Any) -> Any:
    chosen, _, updated = job.updates.partition(":")
    named = [(f"agents.{agent}.of", seat.of) for agent, seat in _seats(job, "league")]
    named += [(f"agents.{agent}.agent", seat.agent) for agent, seat in _seats(job, "shared")]
    named += [("evaluate", one.agent) for one in job.evaluate if job.agents]
    named += [("updates", updated)] if chosen == "only" else []
    wrong = _first((at, agent) for at, agent in named if agent and agent not in job.trained_agents)
    return wrong and {"at": wrong[0], "agent": wrong[1], "trained": ", ".join(job.trained_agents) or "none"}


def _external_seconds(job: Any) -> Any:
    most = job.seconds_of_external_answers
    names = " and ".join(dict.fromkeys(repr(one.model) for one in job.external_models))
    return most >= job.limits.step_timeout_seconds and names and {"most": most, "names": names}


GAME = (
    Rule(
        "nothing_to_train",
        lambda job: job.agents and not job.trained_agents,
        "agents",
        "has no seat with Train, so no policy would be trained",
    ),
    Rule(
        "no_such_policy",
        _names_no_policy,
        "{found[at]}",
        "names {found[agent]!r}, which is not a seat with Train",
        "these are: {found[trained]}",
    ),
    Rule(
        "self_play_with_replay",
        lambda job: job.self_play and job.replayed_jobs,
        "self_play",
        "draws opponents, but a Replay is always the same",
        "remove one of them",
    ),
    Rule(
        "self_play_of_another",
        lambda job: job.self_play and job.self_play.of is not None,
        "self_play.of",
        "cannot be set, as every seat plays with its own policy's versions",
        "leave it out",
    ),
    Rule(
        "self_play_at_one_seat",
        lambda job: job.self_play and job.agents and len(job.learning_seats) < 2,
        "self_play",
        "needs two trained seats",
        "with one, give the others a League in agents",
    ),
    Rule(
        "failed_games_kept",
        lambda job: job.plays_game and job.on_failure == "keep",
        "on_failure",
        "cannot be 'keep' with agents or self_play: a failure at one seat ends the game for all, so the "
        "others' rewards are meaningless",
        "choose 'drop' or 'retry:N'",
    ),
    Rule(
        "environments_of_a_game",
        lambda job: job.plays_game and job.environments,
        "environments",
        "cannot be {job.environments!r:.200} with agents",
        "leave out one of them",
    ),
    Rule(
        "updates_of_one_policy",
        lambda job: job.updates != "all" and not job.trains_several,
        "updates",
        "only takes effect if several policies are trained",
        "leave it out",
    ),
    Rule(
        "evaluated_seat_without_game",
        lambda job: not job.plays_game and any(one.agent or one.against is not None for one in job.evaluate),
        "evaluate",
        "has `agent` or `against`, which only take effect with agents",
    ),
    Rule(
        "another_game_evaluated",
        lambda job: (
            job.plays_game and any(one.environment not in ("", job.environment.id) for one in job.evaluate)
        ),
        "evaluate",
        "cannot name another environment if the agents of a game are trained",
    ),
    Rule(
        "external_in_lockstep",
        lambda job: job.external_models and job.deterministic,
        "deterministic",
        "cannot be True with a tg.opponents.External, which answers differently each time",
        "leave out one of them",
    ),
    Rule(
        "external_slower_than_a_step",
        _external_seconds,
        "limits.step_timeout_seconds",
        "{job.limits.step_timeout_seconds:g} must be above the {found[most]:g} s that the External players "
        "({found[names]}) of one game may take for their answers: all of them may answer within a step",
        "raise it or lower their timeout_seconds",
    ),
    Rule(
        "replay_outside_the_service",
        lambda job: job.replayed_jobs and job.rollout != "server",
        "rollout",
        "must be 'server' with a Replay, whose record is stored in the service",
        "leave it out",
    ),
    Rule(
        "replay_of_other_groups",
        lambda job: job.replayed_jobs and job.algorithm.replacement_rounds,
        "algorithm.dynamic_sampling_rounds",
        "cannot be set with a Replay, whose groups are fixed",
        "leave it out",
    ),
)


@dataclass(frozen=True)
class _Wrong:
    """A trained policy whose settings break a rule."""

    at: str
    """What precedes their names: `agents.AGENT.`, or nothing if they are the job's own."""
    own: Any
    """The settings that apply to it."""
    name: str = ""
    """Which of its algorithm's settings is wrong."""


def _at(agent: str) -> str:
    return f"agents.{agent}."


def _of_a_policy(condition: Callable[[Any, Any], object]) -> Callable[[Any], _Wrong | None]:
    """Return a job's first policy that meets a condition; it is given the job and the policy's settings."""

    def found(job: Any) -> _Wrong | None:
        for agent in job.trained_agents:
            own = job.for_agent(agent)
            if wrong := condition(job, own):
                return _Wrong("" if own is job else _at(agent), own, wrong if isinstance(wrong, str) else "")
        return None

    return found


def _unequal_groups(job: Any) -> _Wrong | None:
    for agent, seat in _seats(job, "train"):
        for name in GROUPS if seat.algorithm is not None else ():
            default = type(seat.algorithm).model_fields[name].default
            if getattr(seat.algorithm, name) not in (default, getattr(job.algorithm, name)):
                return _Wrong(_at(agent), seat, name)
    return None


def _unequal_replacements(job: Any, own: Any) -> Any:
    """Whether a group taught nothing is decided once, for all of its seats."""
    if not job.algorithm.replacement_rounds:
        return None
    names = ("credit", "discount", "overlong_tokens", "overlong_penalty")
    pairs = {name: [getattr(one.algorithm, name, None) for one in (own, job)] for name in names}
    return _first(name for name, (theirs, jobs) in pairs.items() if theirs != jobs)


def _unequal_turns(job: Any, own: Any) -> bool:
    counted = job.algorithm.replacement_rounds and own.algorithm.overlong_tokens
    return bool(counted) and own.sampling.max_turn_tokens != job.sampling.max_turn_tokens


def _only_in_a_pack(job: Any) -> str | None:
    if not job.environment.is_remote:
        return None
    players = "External or Replay" if job.external_models or job.replayed_jobs else None
    return players or (_uses_tools(job) and "tools")


def _uses_tools(job: Any) -> Any:
    return _first(agent for agent in job.trained_agents if job.tools_of(agent) is not None)


_OF = "{found.at}algorithm."

POLICIES = (
    Rule(
        "overlong_tokens_exceed_a_turn",
        _of_a_policy(lambda _, own: own.algorithm.overlong_tokens > own.sampling.max_turn_tokens),
        f"{_OF}overlong_tokens",
        "exceeds max_turn_tokens={found.own.sampling.max_turn_tokens}, at which a completion ends",
        "lower it, or allow longer completions",
    ),
    Rule(
        "endless_warmup",
        _of_a_policy(lambda job, own: own.algorithm.warmup_steps >= job.steps),
        f"{_OF}warmup_steps",
        _ENDLESS_WARMUP.reason,
        _ENDLESS_WARMUP.hint,
    ),
    Rule(
        "stale_without_correction",
        _of_a_policy(lambda job, own: job.max_staleness and _assumes_fresh_tokens(own.algorithm)),
        "max_staleness",
        "must be 0 with {found.at}algorithm.loss='reinforce', which assumes that every token was sampled by "
        "the policy being trained",
        "choose another loss, such as 'ppo' or 'importance_sampling', or set importance_correction",
    ),
    Rule(
        "minibatches_without_groups",
        _of_a_policy(lambda job, own: own.algorithm.minibatches > job.algorithm.groups_per_step),
        f"{_OF}minibatches",
        "must not exceed the job's groups_per_step={job.algorithm.groups_per_step}",
    ),
    Rule(
        "no_siblings",
        _of_a_policy(lambda job, own: own.algorithm.compares_siblings and job.algorithm.group_size < 2),
        f"{_OF}name",
        "compares episodes with their group, but the job's groups have one episode",
        "raise algorithm.group_size",
    ),
    Rule(
        "groups_of_a_seat",
        _unequal_groups,
        f"{_OF}{{found.name}}",
        "cannot differ from the job's, because all seats play the same episodes",
        "set it in the job's algorithm",
    ),
    Rule(
        "rounds_of_a_seat",
        _of_a_policy(lambda job, own: own.algorithm.replacement_rounds != job.algorithm.replacement_rounds),
        f"{_OF}dynamic_sampling_rounds",
        "differs from the job's",
        "set it in both, or in neither",
    ),
    Rule(
        "replacements_of_a_seat",
        _of_a_policy(_unequal_replacements),
        f"{_OF}{{found.name}}",
        "differs from the job's, but dynamic_sampling_rounds replaces a group for all seats",
        "use the same in both",
    ),
    Rule(
        "turns_of_a_seat",
        _of_a_policy(_unequal_turns),
        "{found.at}sampling.max_turn_tokens",
        "differs from the job's, which overlong_tokens counts from, but dynamic_sampling_rounds replaces a "
        "group for all seats",
        "use the same in both",
    ),
    Rule(
        "several_models_in_lockstep",
        lambda job: job.deterministic and job.other_models,
        "deterministic",
        "cannot be True while agents use several base models, because lockstep needs a single one",
        "leave out one of them",
    ),
    Rule(
        "template_of_several_models",
        lambda job: job.chat_template and job.other_models,
        "chat_template",
        "cannot be set while agents use several base models, which have their own templates",
        "leave out one of them",
    ),
    Rule(
        "game_at_a_server",
        _only_in_a_pack,
        "agents",
        "cannot have {found} in a game on a server",
        "use the game from an installed pack",
    ),
    Rule(
        "tools_of_a_script",
        lambda job: job.rollout == "script" and _uses_tools(job),
        "agents.{found}.tools",
        "cannot be set if a script plays, which calls them itself",
        "leave them out",
    ),
)

RULES: dict[str, tuple[Rule, ...]] = {
    "rl": (*EVALUATED, *PLAYED, *RL, *GAME, *POLICIES),
    "distillation": (*EVALUATED, *PLAYED, *DISTILLATION),
    "sft": (*EVALUATED, *DATASET),
    "preference": (*EVALUATED, *DATASET),
    "policy": (),
}
"""By the kind of job, in the order in which they are checked."""
