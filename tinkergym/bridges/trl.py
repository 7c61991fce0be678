"""Our environments in TRL: a class for `GRPOTrainer(environment_factory=...)`. TRL itself is not imported.

TRL creates instances, calls `reset(**row)` with a row of the dataset, offers public methods as tools, and
calls `get_reward()` at the end. So the policy acts by calling the tool `step` with its action as text.
"""

from __future__ import annotations

import re
from typing import Any

from tinkergym.errors import EpisodeProtocolError, InvalidRequestError
from tinkergym.messages import observation_text
from tinkergym.registration.environments import make
from tinkergym.rollout.environment_host import AnyEnv, system_prompt_of


def environment_factory(id: str, *, unplayed_reward: float = 0.0, **kwargs: Any) -> type[Any]:  # noqa: A002
    """Return a class for TRL's `environment_factory`; each instance plays one episode at a time.

    The dataset needs a column `seed`, and may have `task_index`: the members of a group share a row, so they
    start equal. `training_rows` creates such rows.

    Args:
        id: A registered environment.
        unplayed_reward: Reward of an episode in which the policy never called the tool. An episode whose
            environment failed has no reward, and TRL ignores it.
        kwargs: Arguments of the environment.

    Example:
        >>> factory = environment_factory("board/TicTacToeVs-v0")
        >>> rows = Dataset.from_list(training_rows(64))
        >>> GRPOTrainer(model, train_dataset=rows, environment_factory=factory)
    """
    name = re.sub(r".*/|-v\d+$|\W", "", id)  # TRL logs the reward under this name.
    return type(name, (_Environment,), {"_id": id, "_kwargs": kwargs, "_unplayed": unplayed_reward})


class _Environment:
    _id: str
    _kwargs: dict[str, Any]
    _unplayed: float

    def __init__(self) -> None:
        self._env: AnyEnv = make(self._id, **self._kwargs)
        self._rewards: list[float] = []
        self._over = True
        self._failed = False

    def reset(self, seed: int | None = None, task_index: int | None = None, **row: Any) -> str:
        """Begin an episode and return the text for the end of the prompt."""
        del row
        if seed is None:
            raise InvalidRequestError(
                "the row has no seed, so the members of a group would start differently",
                hint="create the dataset with tinkergym.bridges.trl.training_rows",
                field="seed",
            )
        options = None if task_index is None else {"task_index": int(task_index)}
        observation, _ = self._env.reset(seed=int(seed), options=options)
        self._rewards, self._over, self._failed = [], False, False
        prompt = system_prompt_of(self._env)
        shown = observation_text(observation)
        return f"{prompt}\n\n{shown}" if prompt else shown

    def step(self, action: str) -> str:
        """Act in the environment and read its response.

        Args:
            action: The action, as the text that the environment expects.
        """
        if self._over:
            raise EpisodeProtocolError("the episode is over", hint="answer without calling a tool")
        try:
            observation, reward, terminated, truncated, _ = self._env.step(action)
            shown = observation_text(observation)
        except Exception:
            self._failed = self._over = True
            raise
        self._rewards.append(float(reward))
        self._over = terminated or truncated
        return f"{shown}\nThe episode is over.".strip() if self._over else shown

    def get_reward(self) -> float | None:
        """Return the episode's return; None if the environment failed."""
        if self._failed:
            return None
        return sum(self._rewards) if self._rewards else self._unplayed

    def __del__(self) -> None:
        if hasattr(self, "_env"):
            self._env.close()


def training_rows(count: int, *, seed: int = 0, prompt: str = "") -> list[dict[str, Any]]:
    """Return rows for `datasets.Dataset.from_list`: prompts that episodes extend with observations."""
    message = {"role": "user", "content": prompt and f"{prompt}\n\n"}
    return [{"prompt": [message], "seed": seed + index} for index in range(count)]
