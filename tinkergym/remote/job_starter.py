"""Starting jobs that train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinkergym.algorithms import GRPO
from tinkergym.datasets.marked_tokens import Answers
from tinkergym.datasets.prepare import Overlong
from tinkergym.datasets.rows import DataSource
from tinkergym.errors import (
    InvalidRequestError,
    UnknownEnvironmentError,
)
from tinkergym.recording.agent_program import Play
from tinkergym.recording.session_server import SessionServer
from tinkergym.remote import client_evaluations
from tinkergym.remote.adapter_import import begin_seats
from tinkergym.remote.agent_jobs import MakeProgram, Tasks, check_tasks, program_job
from tinkergym.remote.api import Api
from tinkergym.remote.dataset_upload import written_job
from tinkergym.remote.environment_check import check_environments
from tinkergym.remote.job import Job
from tinkergym.remote.policy_catalog import PolicyCatalog
from tinkergym.remote.rollout_thread import start_playing
from tinkergym.remote.user_files import with_template_read
from tinkergym.reporting.trackers import ReportTo, callbacks_of
from tinkergym.rollout.environment_mix import EnvironmentMix, EnvSources, describe_mix
from tinkergym.rollout.host_pool import MakeEnv
from tinkergym.schema.jobs.distillation import DistillationSpec
from tinkergym.schema.jobs.parts import Adapter
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.names import REMOTE_ID
from tinkergym.schema.parsing import parse_spec
from tinkergym.schema.policy_gradient import PolicyGradient
from tinkergym.schema.preference_losses import PreferenceLoss
from tinkergym.schema.refusals import Refusal
from tinkergym.schema.uploaded_data import DataKind


class JobStarter(PolicyCatalog):
    """Starts jobs that train: a method checks all that can be checked here, then calls `submit` once."""

    def train(
        self,
        env: EnvSources,
        *,
        steps: int | None = None,
        model: str = "nano",
        algorithm: PolicyGradient | Mapping[str, Any] | None = None,
        adapter: Adapter | Mapping[str, Any] | None = None,
        rollout: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        report_to: ReportTo = (),
        **settings: Any,
    ) -> Job:
        """Start a training job.

        `rollout` says where episodes are played. By default a class or a function is played in this process
        ("client"); an id is played by the service ("server") if an installed pack there registers it, else in
        this process if it is registered here.

        Args:
            env: A registered id, an environment class, or a function that makes an environment. Several, each
                with its weight: `[("pack/Easy-v0", 0.7), (MyEnv, 0.3, {"size": 9})]`.
            steps: Train steps. Required.
            model: A model name of the service, a model directory on its machine, or a Hugging Face hub id.
            algorithm: How the policy learns: `GRPO(...)`, `RLOO(...)`, ...; None means `GRPO()`.
            adapter: `LoRA(...)` or `FullParameters()`; None means that of `initial_policy`, or `LoRA()`.
            rollout: "server" or "client"; an explicit value always wins.
            env_kwargs: Arguments of the environment; JSON values.
            report_to: Trackers that receive every step, as in `Job.report_to`.
            **settings: Any other field of `RLSpec`: seed, sampling, limits, deterministic, ...

        Raises:
            InvalidRequestError: A setting is invalid; nothing was started.
            UnknownEnvironmentError: Neither the service nor this process knows the id.
        """
        callbacks = callbacks_of(report_to)
        adapter, settings = self.beginning(model, adapter, settings)
        chosen = {
            "model": model,
            "algorithm": GRPO() if algorithm is None else algorithm,
            "adapter": adapter,
        }
        job = self._play("rl", env, env_kwargs, rollout, chosen | _given(steps=steps) | settings)
        return job.report_to(*callbacks)

    def train_agent(
        self,
        play: Play | None,
        tasks: Tasks = None,
        *,
        model: str = "nano",
        roles: Mapping[str, Any] | None = None,
        steps: int | None = None,
        strict: bool = False,
        report_to: ReportTo = (),
        **settings: Any,
    ) -> Job:
        """Train an agent program as it is: any program that speaks the OpenAI API, one policy per role.

        `play(session)` runs once per episode, here, in a thread. Its calls to `session.url(role)` with
        `session.key` are sampled from the role's policy and recorded, token for token.

        Example:
            >>> def play(session):
            ...     client = openai.OpenAI(base_url=session.url(), api_key=session.key, http_client=HTTP)
            ...     asked = [{"role": "user", "content": session.task["question"]}]
            ...     reply = client.chat.completions.create(model="any", messages=asked)
            ...     return float(reply.choices[0].message.content == session.task["answer"])
            >>> job = client.train_agent(play, tasks, model="nano-instruct", steps=100)

        Args:
            play: Returns the reward: a number, one per role in a dict, or None to drop the episode. Without a
                function, programs elsewhere open the sessions: `POST /v1/jobs/JOB_ID/sessions`.
            tasks: A list or a source of `tinkergym.tasks`, or one per split; `session.task` is one of them.
            model: As in `train`.
            roles: Who answers, by role: `tg.Train(...)`. None is one role, `agent`.
            steps: Train steps. Required.
            strict: Refuse calls that cannot be trained on, such as those with `top_p`. By default they are
                answered and counted.
            report_to: As in `train`.
            **settings: As in `train`. Unlike there, the loss is a mean over episodes (`aggregation`).

        Raises:
            InvalidRequestError: A setting is invalid; nothing was started.
        """
        callbacks = callbacks_of(report_to)
        check_tasks(tasks)
        if play is None and strict:
            raise InvalidRequestError(
                "has no effect on sessions that programs elsewhere open", hint="leave it out", field="strict"
            )
        make = MakeProgram(play, tasks)
        roles = begin_seats(self._api, roles, model, settings.get("adapter"))
        adapter, settings = self.beginning(model, settings.get("adapter"), settings)
        spec = program_job(make, roles, settings, _given(steps=steps) | {"model": model, "adapter": adapter})
        if play is None:
            job = self.submit(spec)
        else:
            job = self._submit_and_play(spec, make, SessionServer(strict=strict))
        return job.report_to(*callbacks)

    def sft(
        self,
        data: DataSource,
        *,
        model: str = "nano",
        steps: int | None = None,
        epochs: float | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        adapter: Adapter | Mapping[str, Any] | None = None,
        eval_data: DataSource | None = None,
        answers: Answers = "all",
        on_overlong: Overlong = "refuse",
        ignore: Sequence[str] = (),
        report_to: ReportTo = (),
        **settings: Any,
    ) -> Job:
        """Start supervised fine-tuning on the assistant's messages of conversations.

        Rows are `{"messages": [...]}`, `{"prompt": ..., "completion": ...}`, `{"text": ...}`, or in the
        layouts of OpenAI's files, ShareGPT and Alpaca. They are rendered here, with the template that
        sampling uses, and sent as token ids. Data that the service already has is not sent again.

        Args:
            data: A file or folder (JSON lines or array, Parquet, Arrow, CSV, known by its content), a list of
                rows, or tasks of `tinkergym.tasks`.
            model: As in `train`.
            steps: Train steps; or pass `epochs`.
            epochs: Passes over the data; by default one.
            batch_size: Rows per step; None means 32, or all if there are fewer.
            learning_rate: Peak learning rate.
            adapter: As in `train`.
            eval_data: For evaluation; or pass `held_out=0.1` to hold out a fraction of `data`.
            answers: Train on all assistant messages of a conversation, or only on the last.
            on_overlong: "drop" skips rows longer than the model's context, "refuse" raises an error.
            ignore: Columns to skip; other unknown columns are refused.
            report_to: As in `train`.
            **settings: Any other field of `SFTSpec`: seed, lr_schedule, warmup_steps, initial_policy, ...

        Raises:
            InvalidRequestError: A row cannot be trained on (the message names line, field and reason), or a
                setting is invalid; nothing was started.
        """
        given = {"model": model, "adapter": adapter, "batch_size": batch_size, "learning_rate": learning_rate}
        return self._train_on(
            "sft",
            data,
            report_to,
            given | settings,
            eval_data=eval_data,
            steps=steps,
            epochs=epochs,
            answers=answers,
            on_overlong=on_overlong,
            ignore=ignore,
        )

    def preference(
        self,
        data: DataSource,
        *,
        model: str = "nano",
        loss: PreferenceLoss | Mapping[str, Any] | None = None,
        steps: int | None = None,
        epochs: float | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        adapter: Adapter | Mapping[str, Any] | None = None,
        eval_data: DataSource | None = None,
        on_overlong: Overlong = "refuse",
        ignore: Sequence[str] = (),
        report_to: ReportTo = (),
        **settings: Any,
    ) -> Job:
        """Start preference training on pairs of completions: the chosen one is raised over the rejected one.

        Rows are `{"prompt": ..., "chosen": ..., "rejected": ...}`; a prompt may be `messages` instead. Single
        completions with a label, `{"prompt": ..., "completion": ..., "label": true}`, are paired.

        Args:
            data: As in `sft`.
            model: As in `train`.
            loss: `DPO(...)` (the default), `IPO(...)`, `Hinge(...)`, `SimPO(...)` or `ORPO(...)`.
            steps: Train steps; or pass `epochs`.
            epochs: Passes over the data; by default one.
            batch_size: Pairs per step; None means 32, or all if there are fewer.
            learning_rate: Peak learning rate.
            adapter: As in `train`.
            eval_data: As in `sft`.
            on_overlong: As in `sft`.
            ignore: As in `sft`.
            report_to: As in `train`.
            **settings: Any other field of `PreferenceSpec`: seed, initial_policy, warmup_steps, ...

        Raises:
            InvalidRequestError: A row cannot be trained on (the message names line, field and reason), or a
                setting is invalid; nothing was started.
        """
        given = {"model": model, "adapter": adapter, "batch_size": batch_size, "learning_rate": learning_rate}
        return self._train_on(
            "preference",
            data,
            report_to,
            given | {"loss": loss} | settings,
            eval_data=eval_data,
            steps=steps,
            epochs=epochs,
            answers="all",
            on_overlong=on_overlong,
            ignore=ignore,
        )

    def distill(
        self,
        env: EnvSources,
        *,
        teacher: str | None = None,
        steps: int | None = None,
        model: str = "nano",
        adapter: Adapter | Mapping[str, Any] | None = None,
        rollout: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        report_to: ReportTo = (),
        **settings: Any,
    ) -> Job:
        """Start on-policy distillation: the student plays, and a teacher scores its tokens.

        Args:
            env: As in `train`.
            teacher: Required: a model as in `model`, a job's id for its newest version, or `JOB@VERSION` as
                in `policy`.
            steps: Train steps. Required.
            model: The student.
            adapter: `LoRA(...)` or `FullParameters()`, of the student; None means `LoRA()`.
            rollout: As in `train`.
            env_kwargs: As in `train`.
            report_to: As in `train`.
            **settings: Any other field of `DistillationSpec`: episodes_per_step, learning_rate, sampling, ...

        Raises:
            InvalidRequestError: A setting is invalid, or the teacher has a different tokenizer.
            NotFoundError: The teacher is not one of your jobs, or has no checkpoint.
        """
        adapter, settings = self.beginning(model, adapter, settings)
        chosen = {"model": model, "adapter": adapter}
        said = _given(teacher=teacher, steps=steps)
        callbacks = callbacks_of(report_to)
        job = self._play("distillation", env, env_kwargs, rollout, chosen | said | settings)
        return job.report_to(*callbacks)

    def _play(
        self,
        kind: str,
        env: EnvSources,
        env_kwargs: Mapping[str, Any] | None,
        rollout: str | None,
        settings: Mapping[str, Any],
    ) -> Job:
        environment = describe_mix(env, env_kwargs)
        played = _played_in(environment, kind, rollout, settings)
        if played.rollout != "client":
            try:
                return self.submit(played)
            except UnknownEnvironmentError as error:
                of_evaluation = error.field == "evaluate"
                if rollout is not None or environment.unknown_here or of_evaluation:
                    raise
            played = played.model_copy(update={"rollout": "client"})
        return self._submit_and_play(_seen_here(self._api, played, environment), environment.make)

    def _train_on(
        self, kind: DataKind, data: DataSource, report_to: ReportTo, settings: dict[str, Any], **reading: Any
    ) -> Job:
        callbacks, model = callbacks_of(report_to), settings.pop("model")
        adapter, settings = self.beginning(model, settings.pop("adapter"), settings)
        settings |= {"adapter": adapter}
        spec = written_job(self._api, kind, data, model=model, settings=settings, **reading)
        if spec.played_by != "client":
            return self.submit(spec).report_to(*callbacks)
        sources = client_evaluations.sources_in(settings.get("evaluate"))
        make_env = client_evaluations.maker_of(sources, spec)
        client_evaluations.check(make_env, spec, self._api.renderer_of(spec))
        played = client_evaluations.with_tasks(make_env, spec)
        return self._submit_and_play(played, make_env).report_to(*callbacks)

    def _submit_and_play(
        self, spec: JobSpec, make_env: MakeEnv, sessions: SessionServer | None = None
    ) -> Job:
        return self._play_here(self.submit(spec).view(), make_env, sessions)

    def _play_here(self, view: JobView, make_env: MakeEnv, sessions: SessionServer | None = None) -> Job:
        return Job(self._api, view, rollout=start_playing(self._api.connection, view, make_env, sessions))


def _given(**required: Any) -> dict[str, Any]:
    """Drop arguments that were not given, so that a missing one is reported together with a misspelt one."""
    return {name: value for name, value in required.items() if value is not None}


def _refuse_impossible(spec: PlayedSpec, environment: EnvironmentMix) -> None:
    if spec.rollout == "server" and environment.only_here:
        raise InvalidRequestError(
            "'server' needs an environment id: the service does not run a client's code",
            hint="use rollout='client', or install the environment as a pack on the service's machine",
            field="rollout",
        )
    if spec.rollout == "script":
        raise InvalidRequestError(
            "'script' is for your own loop, which train(...) does not have",
            hint="wrap the environment: tinkergym.wrappers.TrainRemotely(gym.make(...), steps=...)",
            field="rollout",
        )


def _played_in(
    environment: EnvironmentMix, kind: str, rollout: str | None, settings: Mapping[str, Any]
) -> RLSpec | DistillationSpec:
    """Return the settings of a job that plays in an environment."""
    for name in ("environment", "environments"):
        if name in settings:
            raise InvalidRequestError("is already the first argument", hint="leave it out", field=name)
    here_or_there = "client" if environment.only_here else "server"
    spec = parse_spec(
        {
            **environment.settings,
            "rollout": here_or_there if rollout is None else rollout,
            **with_template_read(settings),
            "kind": kind,
        },
        arguments=("env_kwargs",),
        chosen=settings,
    )
    played = spec.played
    assert played
    _refuse_impossible(played, environment)
    return played


def _seen_here(
    api: Api, spec: RLSpec | DistillationSpec, environment: EnvironmentMix
) -> RLSpec | DistillationSpec:
    """Return a job's settings with what its environments show at their first reset in this process."""
    if environment.unknown_here:
        raise UnknownEnvironmentError(
            f"{environment.unknown_here!r} is not registered in this process",
            hint="register it, pass its class to train(...), or let the service play",
            field="environment.id",
        )
    spec = spec.with_environments(lambda one: one.without_token() if one.id == REMOTE_ID else one)
    # Recorded by the client, because only here the environment exists: the service and later users of the
    # policy could not ask it for its prompt.
    seen = check_environments(environment.make, spec, api.renderer_of(spec))
    recorded = {
        "environment_prompt": seen.system_prompt,
        "environment_variables": dict(seen.variables),
        "environment_data": dict(seen.data),
    }
    spec = spec.model_copy(update=recorded)
    noted = client_evaluations.with_tasks(environment.make, spec).with_group_rewards(seen.pays_groups)
    if isinstance(noted, Refusal):
        raise noted.error()
    return noted.seated(seen.agents, seen.offered)
