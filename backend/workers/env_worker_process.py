"""`python -m backend.workers.env_worker_process`: the process of an environment worker.

A child of the Ray actor that stands for it, because packs run here: it has neither Ray's connection and token
nor the service's environment variables. Its settings come on the standard input.
"""

from __future__ import annotations

import logging

from backend.config import ServiceConfig
from backend.external import judges, opponent_models
from backend.machine_paths import MachinePaths
from backend.processes.children import one_question
from backend.workers.env_worker import run_env_worker
from backend.workers.installed_environments import environment_maker
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


if __name__ == "__main__":
    main()
