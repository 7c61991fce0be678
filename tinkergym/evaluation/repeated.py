"""Several episodes per task, for what one cannot tell: pass@k, and pass^k, how reliable a policy is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.evaluate import EnvironmentSource, EvaluablePolicy, make_once, resolved
from tinkergym.evaluation.sampled_runs import play_with_model, wanted_episodes
from tinkergym.evaluation.scores import Scores
from tinkergym.schema.decoding import DecodingOptions


def evaluate_repeatedly(
    policy: EvaluablePolicy,
    environment: EnvironmentSource,
    *,
    tasks: int = 32,
    samples: int = 4,
    seed: int = 0,
    success: float = 1.0,
    env_kwargs: Mapping[str, Any] | None = None,
    max_concurrent: int = 64,
    **decoding: Unpack[DecodingOptions],
) -> Scores:
    """Let a policy play each task several times, as `tinkergym eval -n` does.

    Args:
        policy: Who plays.
        environment: A registered id, an environment class, or a function that makes one. An id that is not
            known here is played by the policy's service.
        tasks: How many tasks: seeds that count up.
        samples: Episodes per task. They start from the same state.
        seed: Of the first task.
        success: The least return that counts as success.
        env_kwargs: For the environment.
        max_concurrent: Episodes played at once.
        **decoding: As for `evaluate`. The temperature is 1 if left out, and must be above 0: else the
            episodes of a task would be the same.

    Raises:
        InvalidRequestError: An argument is out of range; its name is in `field`.

    Example:
        >>> scores = evaluate_repeatedly(job.policy(), "dialogue/SupportVs-v0", samples=4)
        >>> scores.pass_hat(4)
    """
    for field, value in (("tasks", tasks), ("samples", samples)):
        if value < 1:
            raise InvalidRequestError(f"must be at least 1, not {value}", field=field)
    options: DecodingOptions = {"temperature": 1.0, **decoding}
    chosen = policy.decoding.with_options(**options)
    if samples > 1 and chosen.temperature == 0:
        raise InvalidRequestError(
            f"at temperature 0 the {samples} episodes of a task are the same",
            hint="choose a temperature above 0, or samples=1",
            field="samples",
        )
    reference, make_env = resolved(environment, dict(env_kwargs or {}))
    if make_env is not None:
        make_once(make_env, reference)
    wanted = wanted_episodes(seed=seed, tasks=dict.fromkeys(range(tasks)), samples=samples)
    records = play_with_model(policy, reference, make_env, wanted, chosen, max_concurrent=max_concurrent)
    return Scores(list(records), success=success)
