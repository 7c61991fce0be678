"""Which evaluations a job may have."""

from __future__ import annotations

from typing import Any

from tinkergym.schema.jobs.rules.rule_table import Rule, RuleTable, first_twice
from tinkergym.schema.names import is_remote


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


EVALUATED = RuleTable(
    (
        Rule(
            "evaluation_without_environment",
            _without_environment,
            "evaluate",
            "must name an environment, because this job plays none itself",
            "set environment in each entry",
        ),
        Rule(
            "evaluation_of_another_script",
            _of_another_script,
            "evaluate",
            "must name the job's own environment or one of the service, because the workers that play this "
            "job have no other",
            "name one of those, or leave environment out",
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
            "install its pack with the service, or evaluate it yourself with job.policy().evaluate(...)",
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
            lambda job: first_twice(_evaluation_names(job)),
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
    ),
    lambda job: (job,) if job.evaluate or job.best_by else (),
)
