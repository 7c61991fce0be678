"""Points: the numbers of one train step, under the names that trackers show."""

from __future__ import annotations

from dataclasses import dataclass

from tinkergym.schema.events import StepEvent

_NAMES = {
    "clip_fraction": "clip_ratio/region_mean",
    "clip_low_fraction": "clip_ratio/low_mean",
    "clip_high_fraction": "clip_ratio/high_mean",
    "truncated_fraction": "completions/clipped_ratio",
    "sampled_entropy": "entropy",
    "logprob_gap_mean": "sampling/sampling_logp_difference/mean",
    "logprob_gap_max": "sampling/sampling_logp_difference/max",
}
"""Our metrics that TRL's trainers report with the same meaning; others keep their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The numbers of one train step."""

    step: int
    """1 for the first."""
    time: float
    """When the step was done, in seconds since 1970, by the service's clock."""
    values: dict[str, float]
    """By name. Where the meaning is the same, the name is that of TRL's trainers."""


def point_of(step: StepEvent, time: float) -> Point:
    """Return a train step's numbers; what the step did not measure is left out."""
    found: dict[str, float | None] = {
        "loss": step.loss,
        "reward": step.reward_mean,
        "reward_std": step.reward_std,
        "step_time": step.step_seconds,
        "tokens_per_second": step.tokens_per_second,
        "time/sampling": step.sampling_seconds,
        "time/learning": step.learning_seconds,
        "policy_version": step.policy_version,
        "trained_tokens": step.trained_tokens,
    }
    if step.records is None:
        found |= {
            "episodes": step.episodes,
            "failed_episodes": step.failed_episodes,
            "sampled_tokens": step.sampled_tokens,
            "turns": step.turns,
        }
    compared = step.metrics.get("compared_groups")
    if compared and "zero_variance_groups" in step.metrics:
        found["frac_reward_zero_std"] = step.metrics["zero_variance_groups"] / compared
    found |= {_NAMES.get(name, name): value for name, value in step.metrics.items()}
    values = {name: float(value) for name, value in found.items() if value is not None}
    return Point(step=step.step, time=time, values=values)
