"""`python -m backend.workers.env_worker_process`: the process of an environment worker.

A child of the Ray actor that stands for it, because packs run here: it has neither Ray's connection and token
nor the service's environment variables. Its settings come on the standard input.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from backend.config import ServiceConfig
from backend.external import judges, opponent_models
from backend.external.urls import is_remote, pinned
from backend.machine_paths import MachinePaths
from backend.processes.children import one_question
from backend.workers.env_worker import run_env_worker
from tinkergym.registration.games import make_playable
from tinkergym.rollout.environment_host import AnyEnv
from tinkergym.rollout.game_table import GameTable, seated
from tinkergym.rollout.host_pool import MakeEnv
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.tools.sandbox import isolation_rule
from tinkergym.user_code.parent_watch import end_with_parent


def main() -> None:
    """Play until the process ends."""
    with one_question() as (question, _):
        end_with_parent()  # On Linux the kernel ends it sooner.
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
        logging.getLogger("httpx").setLevel(logging.WARNING)
        config = ServiceConfig.model_validate(question["config"])
        judges.allow_only(config.judge_urls)
        opponent_models.allow_only(config.opponent_urls)
        isolation_rule.require(config.python_tool)
        run_env_worker(
            url=question["url"],
            run_dir=config.run_dir,
            token=question["token"],
            worker_id=question["worker_id"],
            max_episodes=config.episodes_per_worker,
            stall_seconds=config.environment_stall_seconds,
            make_env=environment_maker(config.environment_urls),
            hide=MachinePaths(config).hidden_in_trajectory,
        )


def environment_maker(listed: Sequence[str]) -> MakeEnv:
    """Return a function that creates the environment of a leased episode's reference.

    Args:
        listed: `ServiceConfig.environment_urls`. Checked again here: the operator may have changed it since
            the job was accepted, and a name may resolve differently by now.
    """
    # Not a nested function: it must be picklable for environments in their own processes.
    return partial(_make, tuple(listed))


def _make(listed: Sequence[str], ref: EnvironmentRef) -> AnyEnv:
    made: AnyEnv = seated(make_playable(pinned(ref, listed) if is_remote(ref) else ref))
    if isinstance(made, GameTable):
        made.only_marked_tools = True
    return made


if __name__ == "__main__":
    main()
