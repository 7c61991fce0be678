"""Plays one evaluation, branches, or a cross-play in its own process, because a pack is foreign code.

Reads a request (JSON) from standard input and writes a line for each finished episode. Completions come from
the gateway, with the caller's own key, so it can sample nothing that the caller cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from backend.evaluations.service_evaluations import CrossPlayOfJob, StoredBranch
from backend.machine_paths import MachinePaths
from backend.processes.children import one_question
from tinkergym.errors import InternalServiceError, TinkerGymError
from tinkergym.evaluation.evaluate import PolicyEpisode, make_once, play_policy
from tinkergym.registration.environments import make_environment
from tinkergym.registration.games import make_playable
from tinkergym.remote.api import Api
from tinkergym.remote.branching import play_branches
from tinkergym.remote.job import Job
from tinkergym.remote.policy import Policy
from tinkergym.remote.transport import Connection
from tinkergym.schema.decoding import Decoding, DecodingOptions
from tinkergym.schema.evaluation import CrossPlayLine, EvaluationLine, EvaluationRequest
from tinkergym.schema.events import ErrorView

_MOST_CONCURRENT = 64


def play(wanted: EvaluationRequest, url: str, key: str) -> Iterator[EvaluationLine]:
    """Play the episodes and yield each as it ends.

    Raises:
        TinkerGymError: The environment is unknown or cannot be created, or there is no such policy.
    """
    paths = MachinePaths(None)
    is_game = make_once(make_environment, wanted.environment)
    with Connection(url, token=key, patience_seconds=30.0) as connection:
        policy = Policy(
            Api(connection),
            name=wanted.policy,
            model=wanted.model,
            chat_template=wanted.chat_template,
            template_variables=wanted.template_variables,
            template_date=wanted.template_date,
            version=wanted.policy_version,
            limits=wanted.limits,
            system_prompt=wanted.system_prompt,
            reasoning=wanted.reasoning,
        )
        episodes = {
            one.episode_id: PolicyEpisode(
                seed=one.seed, sampling_seed=one.sampling_seed, task_index=one.task_index
            )
            for one in wanted.episodes
        }
        for episode_id, trajectory in play_policy(
            policy,
            wanted.environment,
            make_environment,
            episodes,
            Decoding(**wanted.model_dump(include=set(DecodingOptions.__annotations__))),
            max_concurrent=_MOST_CONCURRENT,
        ):
            shown = paths.hidden_in_trajectory(trajectory)
            yield EvaluationLine(episode_id=episode_id, trajectory=shown, is_game=is_game)


def branch(wanted: StoredBranch, url: str, key: str) -> Iterator[EvaluationLine]:
    """Continue a stored episode and yield each continuation as it ends.

    Raises:
        TinkerGymError: It is not stored, or cannot be replayed or continued so.
    """
    paths = MachinePaths(None)
    with Connection(url, token=key, patience_seconds=30.0) as connection:
        api = Api(connection)
        stored = api.episode(wanted.job_id, wanted.episode_id)
        for line in play_branches(api, stored, wanted, make_playable):
            assert line.trajectory is not None
            shown = {
                "trajectory": paths.hidden_in_trajectory(line.trajectory),
                "others": [paths.hidden_in_trajectory(one) for one in line.others],
            }
            yield line.model_copy(update=shown)


def crossplay(wanted: CrossPlayOfJob, url: str, key: str) -> Iterator[CrossPlayLine]:
    """Let a job's policies play each other, and yield the figures once all games have ended.

    Raises:
        TinkerGymError: Its environment is not a game, or a player is unknown.
    """
    with Connection(url, token=key, patience_seconds=30.0) as connection:
        api = Api(connection)
        found = Job(api, api.job(wanted.job_id)).crossplay(
            wanted.versions or None, against=wanted.against, pairs=wanted.pairs, progress=False
        )
        yield CrossPlayLine(crossplay=found.to_json(), ratings=found.ratings().to_json())


def _asked(question: dict[str, Any]) -> Iterator[BaseModel]:
    wanted, url, key = question["wanted"], question["url"], question["key"]
    match question["kind"]:
        case StoredBranch.__name__:
            return branch(StoredBranch.model_validate(wanted), url, key)
        case CrossPlayOfJob.__name__:
            return crossplay(CrossPlayOfJob.model_validate(wanted), url, key)
        case _:
            return play(EvaluationRequest.model_validate(wanted), url, key)


def main() -> None:
    """Handle one request."""
    with one_question() as (question, answers):
        try:
            for line in _asked(question):
                answers.write(line.model_dump_json() + "\n")
                answers.flush()
        except Exception as error:  # Foreign code, at the edge of its process.
            known = error if isinstance(error, TinkerGymError) else InternalServiceError(f"{error!r:.500}")
            answers.write(EvaluationLine(error=ErrorView(**known.to_wire())).model_dump_json() + "\n")


if __name__ == "__main__":
    main()
