"""The settings of each policy of a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tinkergym.schema.jobs.rules.rule_table import Rule, RuleTable, first, idle

GROUPS = ("group_size", "groups_per_step")
"""Settings shared by all seats of a job, because they play the same episodes."""


@dataclass(frozen=True, slots=True)
class _Policy:
    """A trained policy of a job."""

    job: Any
    own: Any
    """The settings that apply to it."""
    at: str = ""
    """What precedes their names: `agents.AGENT.`, or nothing if they are the job's own."""
    seat: Any = None
    """Its seat in a game."""


def _policies(job: Any) -> Iterator[_Policy]:
    if not job.agents:
        yield _Policy(job, job)
    for agent in job.trained_agents if job.agents else ():
        own = job.for_agent(agent)
        yield _Policy(job, own, "" if own is job else f"agents.{agent}.", job.agents[agent])


def _assumes_fresh_tokens(algorithm: Any) -> bool:
    return bool(algorithm.loss == "reinforce" and algorithm.importance_correction == "none")


def _unequal_groups(it: _Policy) -> Any:
    given, shared = it.seat and it.seat.algorithm, it.job.algorithm
    return first(
        name
        for name in (GROUPS if given else ())
        if getattr(given, name) != getattr(shared, name) and given.is_chosen(name)
    )


def _unequal_replacements(it: _Policy) -> Any:
    """Whether a group taught nothing is decided once, for all of its seats."""
    if not it.job.algorithm.replacement_rounds:
        return None
    names = ("credit", "discount", "overlong_tokens", "overlong_penalty")
    pairs = {name: [getattr(one.algorithm, name, None) for one in (it.own, it.job)] for name in names}
    return first(name for name, (theirs, jobs) in pairs.items() if theirs != jobs)


def _unequal_turns(it: _Policy) -> bool:
    counted = it.job.algorithm.replacement_rounds and it.own.algorithm.overlong_tokens
    return bool(counted) and it.own.sampling.max_turn_tokens != it.job.sampling.max_turn_tokens


_OF = "{it.at}algorithm."

POLICIES = RuleTable(
    (
        Rule(
            "overlong_tokens_exceed_a_turn",
            lambda it: it.own.algorithm.overlong_tokens > it.own.sampling.max_turn_tokens,
            f"{_OF}overlong_tokens",
            "exceeds max_turn_tokens={it.own.sampling.max_turn_tokens}, at which a completion ends",
            "lower it, or allow longer completions",
        ),
        Rule(
            "endless_warmup",
            lambda it: it.own.algorithm.warmup_steps >= it.job.steps,
            f"{_OF}warmup_steps",
            "must be below steps={it.job.steps}, or learning_rate is never reached",
            "lower it, or train longer",
        ),
        Rule(
            "stale_without_correction",
            lambda it: it.job.max_staleness and _assumes_fresh_tokens(it.own.algorithm),
            "max_staleness",
            "must be 0 with {it.at}algorithm.loss='reinforce', which assumes that every token was sampled by "
            "the policy being trained",
            "choose another loss, such as 'ppo' or 'importance_sampling', or set importance_correction",
        ),
        Rule(
            "minibatches_without_groups",
            lambda it: it.own.algorithm.minibatches > it.job.algorithm.groups_per_step,
            f"{_OF}minibatches",
            "must not exceed the job's groups_per_step={it.job.algorithm.groups_per_step}",
            "lower it, or raise algorithm.groups_per_step",
        ),
        Rule(
            "no_siblings",
            lambda it: it.own.algorithm.compares_siblings and it.job.algorithm.group_size < 2,
            f"{_OF}name",
            "compares episodes with their group, but the job's groups have one episode",
            "raise algorithm.group_size",
        ),
        Rule(
            "groups_of_a_seat",
            _unequal_groups,
            f"{_OF}{{found}}",
            "cannot differ from the job's, because all seats play the same episodes",
            "set it in the job's algorithm",
        ),
        Rule(
            "rounds_of_a_seat",
            lambda it: it.own.algorithm.replacement_rounds != it.job.algorithm.replacement_rounds,
            f"{_OF}dynamic_sampling_rounds",
            "differs from the job's",
            "set it in both, or in neither",
        ),
        Rule(
            "replacements_of_a_seat",
            _unequal_replacements,
            f"{_OF}{{found}}",
            "differs from the job's, but dynamic_sampling_rounds replaces a group for all seats",
            "use the same in both",
        ),
        Rule(
            "turns_of_a_seat",
            _unequal_turns,
            "{it.at}sampling.max_turn_tokens",
            "differs from the job's, which overlong_tokens counts from, but dynamic_sampling_rounds replaces "
            "a group for all seats",
            "use the same in both",
        ),
    ),
    _policies,
)


ENDLESS_WARMUP = Rule(
    "endless_warmup",
    lambda job: job.warmup_steps >= job.steps,
    "warmup_steps",
    "must be below steps={it.steps}, or learning_rate is never reached",
    "lower it, or train longer",
)


DATASET = RuleTable(
    (
        Rule(
            "two_evaluation_sets",
            lambda job: job.eval_data is not None and job.held_out,
            "held_out",
            "cannot be given with eval_data",
            "set only one of them",
        ),
        idle("eval_every", lambda job: job.eval_data is None and not job.held_out, "eval_data or held_out"),
        ENDLESS_WARMUP,
    ),
)

DISTILLATION = RuleTable((ENDLESS_WARMUP,))
