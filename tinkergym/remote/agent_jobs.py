"""Jobs that train an agent program: what is refused before they start, and how their sessions are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinkergym.algorithms import GRPO
from tinkergym.errors import InvalidRequestError
from tinkergym.recording.agent_program import AgentProgram, Play, ProgramSession
from tinkergym.remote.client_evaluations import with_tasks
from tinkergym.remote.user_files import with_template_read
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.seats import Train
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.names import PROGRAM, local_id
from tinkergym.schema.parsing import environment_ref, parse_spec
from tinkergym.tasks.pinned import named_hash
from tinkergym.tasks.source import TaskSource

Tasks = TaskSource | Sequence[Any] | Mapping[str, Sequence[Any]] | None
"""The tasks, or those of each split; whatever a sequence holds."""

_OF_ENVIRONMENTS = {
    "system_prompt": "the program writes its own prompts",
    "deterministic": "a program calls whenever it likes, and lockstep waits for all of a step's calls",
    "executor": "a program runs in this process; it may start others itself",
    "self_play": "a program has roles",
    "rollout": "a program is played in this process",
    "agents": "a program has roles",
    "environment": "a program takes its place",
    "environments": "a program takes their place",
}
"""Settings that would have no effect, and why."""


@dataclass(frozen=True, slots=True)
class MakeProgram:
    """Creates the program, with the tasks of the split that an evaluation names."""

    play: Play | None
    tasks: Tasks

    def __call__(self, ref: EnvironmentRef) -> AgentProgram:
        """Create it.

        Raises:
            InvalidRequestError: The tasks have no such split.
        """
        return AgentProgram(self.play or elsewhere, self._tasks_of(ref.kwargs.get("split")))

    def _tasks_of(self, split: Any) -> TaskSource | Sequence[Any] | None:
        if not isinstance(self.tasks, Mapping):
            if split is None:
                return self.tasks
            raise InvalidRequestError(
                f"the tasks have no split {split!r}",
                hint='pass them by split: {"train": [...], "test": [...]}',
                field="split",
            )
        if split is None:
            split = "train" if "train" in self.tasks else next(iter(self.tasks))
        if split not in self.tasks:
            hint = f"choose from {sorted(map(str, self.tasks))}"
            raise InvalidRequestError(f"the tasks have no split {split!r}", hint=hint, field="split")
        return self.tasks[split]


def elsewhere(_: ProgramSession) -> None:
    """Stand for a program that runs elsewhere; its sessions are opened over HTTP."""


def program_ref(play: Play | None) -> EnvironmentRef:
    """Return what the service calls a program.

    Raises:
        InvalidRequestError: It is not a function.
    """
    if play is None:
        play = elsewhere
    if not callable(play):
        raise InvalidRequestError(
            f"cannot train {play!r:.80}", hint="pass a function that takes a session", field="play"
        )
    return environment_ref(local_id(play, PROGRAM), {})


def check_tasks(tasks: Tasks) -> None:
    """Refuse tasks that cannot be drawn from.

    Raises:
        InvalidRequestError: They are not a sequence, or there are none.
    """
    if tasks is None:
        return
    parts = tasks if isinstance(tasks, Mapping) else {"": tasks}
    if not parts:
        raise InvalidRequestError("there are no tasks", hint="pass None for a program without", field="tasks")
    for split, part in parts.items():
        if not isinstance(part, Sequence) or isinstance(part, str):
            raise InvalidRequestError(
                f"must be a list or a source of tinkergym.tasks, not {type(part).__name__}",
                hint="list(...) makes one of an iterator",
                field=f"tasks.{split}" if split else "tasks",
            )
        if not len(part):
            raise InvalidRequestError(
                "there are no tasks",
                hint="pass None for a program without",
                field=f"tasks.{split}" if split else "tasks",
            )


def _by_episodes(algorithm: Any) -> Any:
    """Return the algorithm; without another choice, its loss is a mean over episodes of their tokens' mean.

    So an episode of many calls does not weigh more than one of few.
    """
    if algorithm is None:
        algorithm = GRPO()
    if isinstance(algorithm, Mapping):
        is_usual = algorithm.get("name", "grpo") == "grpo"
        return {"aggregation": "sequence", **algorithm} if is_usual else algorithm
    if getattr(algorithm, "aggregation", "") != "token" or "aggregation" in algorithm.model_fields_set:
        return algorithm
    return algorithm.model_copy(update={"aggregation": "sequence"})


def program_settings(roles: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job's settings for the roles.

    Raises:
        InvalidRequestError: A setting is one of environments only, or there is no role.
    """
    for name in settings:
        if name in _OF_ENVIRONMENTS:
            raise InvalidRequestError(_OF_ENVIRONMENTS[name], hint="leave it out", field=name)
    if roles is not None and not (isinstance(roles, Mapping) and roles):
        raise InvalidRequestError(
            "must have a name for each role", hint='write roles={"solver": tg.Train()}', field="roles"
        )
    chosen = {"agent": Train()} if roles is None else dict(roles)
    return {
        "collapse_guard": False,
        **settings,
        "algorithm": _by_episodes(settings.get("algorithm")),
        "agents": chosen,
        "rollout": "client",
        "kind": "rl",
    }


def program_job(
    make: MakeProgram, roles: Mapping[str, Any] | None, settings: Mapping[str, Any], chosen: dict[str, Any]
) -> JobSpec:
    """Return the specification of a job that trains a program.

    Args:
        make: Creates the program.
        roles: Who answers, by role.
        settings: What the caller chose besides.
        chosen: Model and steps.

    Raises:
        InvalidRequestError: A setting is invalid.
    """
    environment = program_ref(make.play)
    wanted = with_template_read(program_settings(roles, settings) | chosen)
    spec = parse_spec(
        {**wanted, "environment": environment},
        arguments=("play", "tasks", "roles", "strict"),
        chosen=settings,
    )
    assert spec.played, "it is an RL job"
    hashes = named_hash(environment.id, make(environment))
    return with_tasks(make, spec.played.model_copy(update={"environment_data": hashes}))
