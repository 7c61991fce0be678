"""How long a job trains, and on what."""

from __future__ import annotations

from tinkergym.schema.jobs.rules.rule_table import Rule, RuleTable, idle

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
