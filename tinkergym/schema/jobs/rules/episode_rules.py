"""Which episodes a job plays, and what it learns from them."""

from __future__ import annotations

from typing import Any

from tinkergym.schema.jobs.rules.rule_table import Rule, RuleTable, first, first_twice, idle
from tinkergym.schema.mixtures import names_of


def _not_at_the_client(job: Any) -> Any:
    own = ("", *job.own_environments)
    if job.rollout != "client":
        return None
    return first(one.environment for one in job.evaluate if one.environment not in own)


PLAYED = RuleTable(
    (
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
            lambda job: first_twice(names_of([(one.id, one.kwargs) for one in job.environments])),
            "environments",
            "has {found!r} twice",
            "add up their weights, or give them different kwargs",
        ),
        Rule(
            "environments_of_a_script",
            lambda job: job.environments and job.rollout == "script",
            "environments",
            "must be empty if a script plays, because the script chooses what it plays",
            "leave it out",
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
        idle(
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
    ),
)


def _unreachable_overlong(job: Any) -> int:
    begins = job.sampling.max_turn_tokens - job.algorithm.overlong_tokens
    most = job.limits.max_episode_tokens
    return int(begins) if job.algorithm.overlong_tokens and most is not None and most <= begins else 0


RL = RuleTable(
    (
        Rule(
            "overlong_tokens_never_reached",
            _unreachable_overlong,
            "algorithm.overlong_tokens",
            "lowers the reward of completions beyond {found} tokens, but "
            "limits.max_episode_tokens={it.limits.max_episode_tokens} ends them before",
            "raise one of the two, or lower sampling.max_turn_tokens",
        ),
        Rule(
            "group_rewards_in_lockstep",
            lambda job: job.group_rewards and job.deterministic,
            "group_rewards",
            "cannot be combined with deterministic=True: episodes are sampled in lockstep, and those waiting "
            "for their group would block the others",
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
            "{it.algorithm.group_size}",
            "raise it",
        ),
        Rule(
            "stale_in_lockstep",
            lambda job: job.max_staleness and job.deterministic,
            "max_staleness",
            "must be 0 with deterministic=True: which version samples would depend on the learner's speed",
            "remove one of the two",
        ),
        idle(
            "kl_metric_every",
            lambda job: job.algorithm.kl_coefficient,
            "algorithm.kl_coefficient=0, as with a penalty the metric kl already covers every step",
        ),
        idle("collapse_guard", lambda job: not job.plays_game, "agents or self_play"),
        Rule(
            "updates_of_one_policy",
            lambda job: job.updates != "all" and not job.trains_several,
            "updates",
            "only takes effect if several policies are trained",
            "leave it out",
        ),
        Rule(
            "evaluated_seat_without_game",
            lambda job: (
                not job.plays_game and any(one.agent or one.against is not None for one in job.evaluate)
            ),
            "evaluate",
            "has `agent` or `against`, which only take effect with agents",
            "leave them out, or set agents",
        ),
    ),
)
