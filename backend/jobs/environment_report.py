"""A step's results per environment, for jobs with several. Pure."""

from __future__ import annotations

from backend.episodes.played import Played
from backend.jobs.step_report import statistics
from tinkergym.schema.jobs.played_spec import PlayedSpec


def per_environment(spec: PlayedSpec, played: Played) -> dict[str, float]:
    """Return `environment/<name>/reward_mean` and so on; empty for a job with one environment.

    An environment that was not played in the step has only its number of episodes, 0.
    """
    if not spec.environments:
        return {}
    metrics: dict[str, float] = {}
    for name, environment in spec.own_environments.items():
        counted = statistics([pair for pair in played if pair[0].environment == environment])
        figures = {
            "reward_mean": counted.reward_mean,
            "reward_std": counted.reward_std,
            "episodes": counted.episodes,
            "failed_episodes": counted.failed_episodes,
            "turns": counted.turns,
            "sampled_tokens": counted.sampled_tokens,
            **counted.environment_metrics,
        }
        prefix = f"environment/{name}"
        metrics |= {f"{prefix}/{key}": float(value) for key, value in figures.items() if value is not None}
    return metrics
