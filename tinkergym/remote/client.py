"""The client: submit jobs to a service and use their policies."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, Self, Unpack

from tinkergym.agent.renderer import Renderer
from tinkergym.algorithms import GRPO
from tinkergym.datasets.marked_tokens import Answers
from tinkergym.datasets.prepare import Overlong
from tinkergym.datasets.rows import DataSource
from tinkergym.display.job_table import JobTable
from tinkergym.errors import (
    InvalidRequestError,
    ServiceUnreachableError,
    UnknownEnvironmentError,
    UnknownModelError,
)
from tinkergym.recording.agent_program import Play
from tinkergym.recording.session_server import SessionServer
from tinkergym.registration.environments import make_environment
from tinkergym.remote import client_evaluations, discovery
from tinkergym.remote.adapter_import import begin_from, import_adapter, is_adapter
from tinkergym.remote.agent_jobs import MakeProgram, Tasks, check_tasks, program_ref, program_settings
from tinkergym.remote.api import Api
from tinkergym.remote.ask import ask
from tinkergym.remote.dataset_upload import written_job
from tinkergym.remote.estimate import Estimate, estimate_from, estimate_from_earlier, probe_of
from tinkergym.remote.generating import GenerateOptions
from tinkergym.remote.imported import refuse_while_imported
from tinkergym.remote.inference_jobs import inference_job
from tinkergym.remote.job import Job
from tinkergym.remote.overview import overview_of
from tinkergym.remote.policy import Policy
from tinkergym.remote.preflight import check_environments
from tinkergym.remote.rollout_thread import RolloutThread
from tinkergym.remote.rollout_transport import HttpRolloutTransport, Routes
from tinkergym.remote.training_policy import TrainingPolicy
from tinkergym.remote.transport import Connection
from tinkergym.remote.user_files import read_template, with_template_read
from tinkergym.reporting.run_comparison import RunComparison
from tinkergym.reporting.trackers import ReportTo, callbacks_of
from tinkergym.rollout.environment_host import system_prompt_of, template_variables_of
from tinkergym.rollout.environment_mix import EnvironmentMix, EnvSources, describe_mix, makers_of
from tinkergym.rollout.executors import made
from tinkergym.rollout.host_pool import MakeEnv
from tinkergym.rollout.local_environment import (
    Environment,
    EnvSource,
    describe,
    installed_packs,
    without_token,
)
from tinkergym.schema.algorithms import PolicyGradient
from tinkergym.schema.chat_templates import day_fault, variables_fault
from tinkergym.schema.decoding import Decoding, SeededOptions
from tinkergym.schema.ids import PolicyRef, is_job_id
from tinkergym.schema.jobs.dataset import PreferenceSpec, SFTSpec
from tinkergym.schema.jobs.distillation import DistillationSpec
from tinkergym.schema.jobs.parts import Adapter, Budget, LoRA
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.jobs.training_spec import TrainingSpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.names import REMOTE_ID
from tinkergym.schema.parsing import parse, parse_spec, refuse_recorded
from tinkergym.schema.preference_losses import PreferenceLoss
from tinkergym.schema.refusals import Refusal
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.schema.served_names import ServedName
from tinkergym.schema.summaries import JobOrder, JobQuery
from tinkergym.schema.version import __version__
from tinkergym.schema.versions import require_same_version
from tinkergym.schema.views import EnvironmentView, HealthView, ModelView, PolicyView, TrainedWith
from tinkergym.tasks.pinned import named_hash

MOST_EPISODES_AT_ONCE = 256
_MOST_EARLIER = 8
"""Jobs of the same kind and model that an estimate without a trial looks at."""
FIRST_PATIENCE_SECONDS = 1.0
"""A wrong address should fail soon; after the first response, the service may be away for longer."""

_OF_A_JOB = "client.job(JOB_ID).policy() returns a job's policy"


class Client:
    """A connection to a tinkergym service. Thread-safe. Jobs continue after it is closed."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        ca_file: str | None = None,
        patience_seconds: float = 5.0,
        connection: Connection | None = None,
    ) -> None:
        """Connect to the service and check that it responds.

        Args:
            url: None uses TINKERGYM_URL, else a service started on this machine with `tinkergym serve`. May
                end in `/v1`.
            api_key: None uses TINKERGYM_API_KEY, else the local service's key.
            ca_file: PEM file of trusted certificates, for a service with a private certificate authority.
            patience_seconds: How long single calls are retried while the service does not respond.
            connection: Used instead of a new one; a test passes a `tinkergym.testing.FakeConnection`.

        Raises:
            ServiceUnreachableError: No service responds.
            VersionMismatchError: The service has an incompatible version. The message says what to install.
        """
        if connection is None:
            address = discovery.find(url, api_key)
            connection = Connection(
                address.url, token=address.api_key, ca_file=ca_file, patience_seconds=patience_seconds
            )
        self.url, self._connection = connection.url, connection
        self._api = Api(self._connection)
        try:
            health = self._api.health(
                sample=False, patience_seconds=min(patience_seconds, FIRST_PATIENCE_SECONDS)
            )
            require_same_version(__version__, health.version)
        except ServiceUnreachableError as error:
            self._connection.close()
            # Raised from the first line of most scripts: the text has the reason, so hide httpx's long
            # traceback.
            raise error from None
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self.url}>"

    @property
    def api(self) -> Api:
        """The service's routes as methods, for tools that name players or versions themselves."""
        return self._api

    def close(self) -> None:
        """Close the connection. Jobs continue; objects made from this client can no longer be used."""
        self._connection.close()

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
            ...     client = openai.OpenAI(base_url=session.url(), api_key=session.key)
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
            report_to: Trackers that receive every step, as in `Job.report_to`.
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
        environment, make = program_ref(play), MakeProgram(play, tasks)
        chosen = program_settings(roles, settings) | _given(steps=steps) | {"model": model}
        spec = parse_spec(
            {**with_template_read(chosen), "environment": environment},
            arguments=("play", "tasks", "roles", "strict"),
            chosen=settings,
        )
        assert spec.played, "it is an RL job"
        hashes = named_hash(environment.id, make(environment))
        played = spec.played.model_copy(update={"environment_data": hashes})
        noted = played.with_evaluated_tasks(client_evaluations.tasks_in(make, played))
        if isinstance(noted, Refusal):
            raise noted.error()
        job = self.submit(noted)
        if play is not None:
            job = self._play_here(job.view(), make, SessionServer(strict=strict))
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
            model: A model name of the service, a model directory on its machine, or a Hugging Face hub id.
            steps: Train steps; or pass `epochs`.
            epochs: Passes over the data; by default one.
            batch_size: Rows per step; None means 32, or all if there are fewer.
            learning_rate: Peak learning rate.
            adapter: `LoRA(...)` or `FullParameters()`; None means that of `initial_policy`, or `LoRA()`.
            eval_data: For evaluation; or pass `held_out=0.1` to hold out a fraction of `data`.
            answers: Train on all assistant messages of a conversation, or only on the last.
            on_overlong: "drop" skips rows longer than the model's context, "refuse" raises an error.
            ignore: Columns to skip; other unknown columns are refused.
            report_to: Trackers that receive every step, as in `Job.report_to`.
            **settings: Any other field of `SFTSpec`: seed, lr_schedule, warmup_steps, initial_policy, ...

        Raises:
            InvalidRequestError: A row cannot be trained on (the message names line, field and reason), or a
                setting is invalid; nothing was started.
        """
        callbacks = callbacks_of(report_to)
        adapter, settings = self.beginning(model, adapter, settings)
        given = {"batch_size": batch_size, "learning_rate": learning_rate, "adapter": adapter, **settings}
        spec = written_job(
            self._api,
            "sft",
            data,
            model=model,
            eval_data=eval_data,
            steps=steps,
            epochs=epochs,
            answers=answers,
            on_overlong=on_overlong,
            ignore=ignore,
            settings=given,
        )
        return self._train_written(spec, settings.get("evaluate")).report_to(*callbacks)

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
            data: A `.jsonl` file, or tasks of `tinkergym.tasks`.
            model: A model name of the service, a model directory on its machine, or a Hugging Face hub id.
            loss: `DPO(...)` (the default), `IPO(...)`, `Hinge(...)`, `SimPO(...)` or `ORPO(...)`.
            steps: Train steps; or pass `epochs`.
            epochs: Passes over the data; by default one.
            batch_size: Pairs per step; None means 32, or all if there are fewer.
            learning_rate: Peak learning rate.
            adapter: `LoRA(...)` or `FullParameters()`; None means that of `initial_policy`, or `LoRA()`.
            eval_data: For evaluation; or pass `held_out=0.1` to hold out a fraction of `data`.
            on_overlong: "drop" skips rows longer than the model's context, "refuse" raises an error.
            ignore: Columns to skip; other unknown columns are refused.
            report_to: Trackers that receive every step, as in `Job.report_to`.
            **settings: Any other field of `PreferenceSpec`: seed, initial_policy, warmup_steps, ...

        Raises:
            InvalidRequestError: A row cannot be trained on (the message names line, field and reason), or a
                setting is invalid; nothing was started.
        """
        adapter, settings = self.beginning(model, adapter, settings)
        given = {"batch_size": batch_size, "learning_rate": learning_rate, "adapter": adapter, "loss": loss}
        callbacks = callbacks_of(report_to)
        spec = written_job(
            self._api,
            "preference",
            data,
            model=model,
            eval_data=eval_data,
            steps=steps,
            epochs=epochs,
            answers="all",
            on_overlong=on_overlong,
            ignore=ignore,
            settings={**given, **settings},
        )
        return self._train_written(spec, settings.get("evaluate")).report_to(*callbacks)

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
            rollout: Where episodes are played, as in `train`.
            env_kwargs: Arguments of the environment; JSON values.
            report_to: Trackers that receive every step, as in `Job.report_to`.
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

    def infer(
        self,
        policy: str | Policy,
        data: DataSource,
        *,
        n: int = 1,
        max_tokens: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        keep: Sequence[str] = (),
        ignore: Sequence[str] = (),
        logprobs: bool = False,
        name: str = "",
        budget: Budget | None = None,
        rows_per_step: int = 256,
        **decoding: Unpack[SeededOptions],
    ) -> Job:
        """Sample completions of a dataset's rows in the service, detached: `Policy.generate` as a job.

        Returns once the prompts are uploaded. `Job.results` has what is done so far; the rows, their order
        and their seeds are those of `Policy.generate`.

        Args:
            policy: As for `policy`, or what it returned.
            data: As for `Policy.generate`; likewise `n`, `max_tokens`, `tools`, `keep` and `ignore`.
            n: Completions per row.
            max_tokens: The longest completion.
            tools: Functions for rows that have none of their own.
            keep: Columns of the data to copy to the results.
            ignore: Columns to skip.
            logprobs: Keep the logprobs of the sampled tokens.
            name: A label to find the job in lists.
            budget: How much the job may use before it pauses.
            rows_per_step: Rows per step: what is done is kept, and an event sent, after each.
            **decoding: As for `policy`.

        Raises:
            InvalidRequestError: The data cannot be read, or a setting is invalid; nothing was started.
        """
        if max_tokens is not None:
            decoding["max_turn_tokens"] = max_tokens
        known = self.policy(policy) if isinstance(policy, str) else policy
        options = GenerateOptions(
            n=n, tools=tuple(tools), keep=tuple(keep), ignore=tuple(ignore), logprobs=logprobs
        )
        chosen = known.decoding.with_options(**decoding)
        settings = {"name": name, "budget": budget, "rows_per_step": rows_per_step, "decoding": chosen}
        return self.submit(inference_job(self._api, known, data, options, settings))

    def estimate(
        self, *arguments: Any, kind: str = "rl", progress: bool | None = None, **settings: Any
    ) -> Estimate:
        """Estimate what a job would take, by running a few steps of it, which are deleted again.

        Example:
            >>> print(client.estimate("board/TicTacToeVs-v0", steps=200))
            200 steps, about 410,000 tokens, about 4 min 10 s (from 6 trial steps)
            >>> print(client.estimate("chats.jsonl", kind="sft", epochs=3))

        Args:
            arguments: Arguments of the method that would start the job.
            kind: "rl" for `train`, "sft", "preference", or "distillation" for `distill`.
            progress: Show the trial steps, or what they wait for in the queue, on stderr or in the notebook;
                None does so only on a terminal and in a notebook.
            settings: Its keywords; `report_to` is ignored.

        Raises:
            InvalidRequestError: A setting or `kind` is invalid.
            JobFailedError: The steps failed, as the job would.
        """
        probing = _ProbingClient(self)
        methods: dict[str, Callable[..., Job]] = {
            "rl": probing.train,
            "sft": probing.sft,
            "preference": probing.preference,
            "distillation": probing.distill,
        }
        if kind not in methods:
            hint = f"choose one of {', '.join(methods)}"
            raise InvalidRequestError(f"{kind!r:.80} is not a kind of job", hint=hint, field="kind")
        settings.pop("report_to", None)
        with methods[kind](*arguments, **settings) as probe:
            assert probing.wanted is not None
            return estimate_from(probing.wanted, probe, progress=progress)

    def known_estimate(self, spec: JobSpec) -> Estimate | None:
        """Estimate a job from your newest earlier job of its kind and size; None if there is none."""
        alike = (
            self._api.job(one.job_id)
            for one in self.jobs(model=spec.model, archived=True)
            if one.kind == spec.kind and one.step and not one.name.startswith("probe")
        )
        return estimate_from_earlier(spec, islice(alike, _MOST_EARLIER))

    def create_policy(
        self,
        *,
        model: str = "nano",
        adapter: Adapter | Mapping[str, Any] | None = None,
        initial_policy: str = "",
        **settings: Any,
    ) -> TrainingPolicy:
        """Create a policy for your own training loop.

        It is queued like a job and counts against the same limits. Returns at once; the first call waits
        until the policy has a place.

        Args:
            model: As in `train`.
            adapter: `LoRA(...)` or `FullParameters()`; None means that of `initial_policy`, or `LoRA()`.
            initial_policy: `job-...@40`, `job-...@step:40`, ..., to start from a trained policy; or the
                folder or hub id of a PEFT adapter.
            **settings: Any other field of `PolicySpec`: seed, idle_seconds, keep_checkpoints, name, ...

        Raises:
            InvalidRequestError: A setting is invalid; nothing was started.
        """
        refuse_recorded(settings)
        adapter, settings = self.beginning(model, adapter, {**settings, "initial_policy": initial_policy})
        chosen = {"kind": "policy", "model": model, "adapter": adapter}
        spec = parse_spec(chosen | with_template_read(settings))
        self._renderer(spec)  # Refuses an unknown model or variable before it is a job.
        view = self._api.create_job(spec, idempotency_key=uuid.uuid4().hex)
        return TrainingPolicy(self._api, view, self._renderer(view.spec))

    def import_adapter(self, source: str | PathLike[str], *, model: str = "", name: str = "") -> Job:
        """Make a policy of a LoRA adapter that PEFT saved, or that was exported here or elsewhere.

        Sending it takes no place among the jobs. The same adapter is kept once.

        Args:
            source: A folder with `adapter_config.json` and `adapter_model.safetensors`, or a hub id of one.
            model: Its base model, as in `train`; empty is the one that it names.
            name: A label to find it in `jobs`.

        Returns:
            A completed job: its `policy()` acts, and its `id` is an `initial_policy`, an opponent, a teacher.

        Raises:
            InvalidRequestError: It is not plain LoRA in safetensors, or belongs to another base model; the
                message says what is not supported.
        """
        return Job(self._api, import_adapter(self._api, source, model=model, name=name))

    def beginning(
        self, model: str, adapter: Adapter | Mapping[str, Any] | None, settings: dict[str, Any]
    ) -> tuple[Adapter | Mapping[str, Any], dict[str, Any]]:
        """Return a job's adapter, by default that of its initial policy, and settings with a reference to it.

        An adapter that is named by its folder or hub id is imported.
        """
        known = None
        if begins := settings.get("initial_policy"):
            reference, known = begin_from(self._api, begins, model)
            settings = {**settings, "initial_policy": reference}
        return (known or LoRA()) if adapter is None else adapter, settings

    def training_policy(self, policy_id: str) -> TrainingPolicy:
        """Open a policy that `create_policy` created, in this script or another.

        Only one script may train it at a time. Calls from a second one would have the same sequence numbers
        and are refused.

        Args:
            policy_id: `TrainingPolicy.id`, or the `policy-...` that `find_policy` returns for it.
        """
        if policy_id.startswith("policy-"):
            policy_id = self._api.find_policy(policy_id).job_id
        view = self._api.job(policy_id)
        return TrainingPolicy(self._api, view, self._renderer(view.spec))

    def _renderer(self, spec: TrainingSpec) -> Renderer:
        return Renderer.from_bundle(self._api.renderer_of(spec))

    def submit(self, spec: JobSpec) -> Job:
        """Start a job from a complete specification. The caller arranges who plays its episodes."""
        refuse_while_imported()
        # One key per call: if the response is lost and the request repeated, it is still one job.
        packs = installed_packs() if spec.played_by in ("client", "script") else []
        return Job(self._api, self._api.create_job(spec, idempotency_key=uuid.uuid4().hex, packs=packs))

    def attach(
        self,
        job_id: str,
        env: EnvSources | Sequence[EnvSource] | None = None,
        *,
        report_to: ReportTo = (),
    ) -> Job:
        """Attach to a job that was started earlier, by this script or another.

        A job whose episodes are played in the client gets a new worker in this process.

        Args:
            job_id: From `Job.id` or `tinkergym jobs`, or the job's name as in `job`.
            env: The environment's class or function, if the job was started with one; or a list. For a job on
                a dataset, those of its evaluations; without it they are not played here.
            report_to: Trackers that receive the steps they do not have yet, as in `Job.report_to`.

        Raises:
            InvalidRequestError: `env` is not the job's environment, or no client plays its episodes.
            UnknownEnvironmentError: The job's environment is not known here, and `env` was not given.
        """
        callbacks = callbacks_of(report_to)
        return self._attached(job_id, env).report_to(*callbacks)

    def _attached(self, job_id: str, env: EnvSources | Sequence[EnvSource] | None) -> Job:
        view = self._api.job(self._job_id(job_id))
        spec = view.spec
        played = spec.played
        if spec.played_by == "client" and not played:
            if env is None:  # Only to watch: the evaluations wait.
                return Job(self._api, view)
            make_env = client_evaluations.maker_of(env if isinstance(env, list | tuple) else [env], spec)
            return Job(self._api, view) if view.state.final else self._play_here(view, make_env)
        if not played or played.rollout != "client":
            if env is not None:
                raise InvalidRequestError(
                    f"the episodes of {job_id} are not played by a client", hint="leave it out", field="env"
                )
            return Job(self._api, view)
        if view.state.final and env is None:
            return Job(self._api, view)
        make_env = makers_of(env, played)
        return Job(self._api, view) if view.state.final else self._play_here(view, make_env)

    def attach_agent(self, job_id: str, play: Play, tasks: Tasks = None, *, strict: bool = False) -> Job:
        """Attach to a job that `train_agent` started: its program runs in this process, too.

        Args:
            job_id: From `Job.id` or `tinkergym jobs`.
            play: The same program as there, by its name.
            tasks: The same tasks.
            strict: As in `train_agent`.

        Raises:
            InvalidRequestError: The job trains no program, or another one.
        """
        check_tasks(tasks)
        view = self._api.job(job_id)
        own, played = program_ref(play), view.spec.played
        if played is None or played.environment.id != own.id:
            plays = "no program" if played is None else played.environment.id
            raise InvalidRequestError(
                f"the job trains {plays}, not {own.id}",
                hint="pass the function it was started with",
                field="play",
            )
        if view.state.final:
            return Job(self._api, view)
        return self._play_here(view, MakeProgram(play, tasks), SessionServer(strict=strict))

    def job(self, job_id: str) -> Job:
        """Look at a job without playing its episodes.

        Args:
            job_id: The id, or the job's name if no other job has it.

        Raises:
            NotFoundError: You have no such job.
            InvalidRequestError: Several of your jobs have this name; the error lists their ids.
        """
        return Job(self._api, self._api.job(self._job_id(job_id)))

    def _job_id(self, named: str) -> str:
        if not named or is_job_id(named):
            return named
        jobs = self._api.jobs(JobQuery(name=named[:200], archived=True)).jobs
        found = [one.job_id for one in jobs if one.name == named]
        if len(found) > 1:
            raise InvalidRequestError(
                f"{len(found)} of your jobs are named {named!r}: {', '.join(found)}",
                hint="give the id of one",
                field="job_id",
            )
        return next(iter(found), named)

    def find_policy(self, reference: str) -> PolicyView:
        """Resolve a reference: which policy and version it names, and which versions are kept.

        Args:
            reference: `job-...` or `policy-...`, perhaps with `@40`, `@step:40`, `@best` or `@latest`.

        Raises:
            NotFoundError: There is no such policy of yours, or that version is not kept.
            InvalidRequestError: It is not a reference.
        """
        return self._api.find_policy(str(PolicyRef.parse(reference, field="reference")))

    def trained_policy(self, reference: PolicyRef) -> tuple[str, int | None, str]:
        """Return the job that trains a policy, the version that a reference names, and the policy's agent.

        The version is None for the newest, and the agent empty if it is not named and not needed.

        Raises:
            NotFoundError: There is no such policy of yours, or no such version.
        """
        return self._api.trained_policy(reference)

    def jobs(
        self,
        search: str = "",
        *,
        name: str = "",
        state: str | Sequence[str] = (),
        tag: str | Sequence[str] = (),
        environment: str = "",
        model: str = "",
        archived: bool = False,
        sort: JobOrder = "newest",
        limit: int = 50,
        before: str = "",
    ) -> JobTable:
        """List jobs in brief, newest first; `client.job(one.job_id).spec` has the settings of one.

        Args:
            search: Words that must all occur in name, id, kind, model, environment, state or tags.
            name: Part of the name.
            state: One of these states: "running", ["failed", "cancelled"].
            tag: All of these tags, see `Job.label`.
            environment: Part of the environment's id.
            model: Part of the base model's name.
            archived: Include archived jobs.
            sort: "newest", "changed", "reward", "duration", "progress" or "name".
            limit: The most jobs. `has_older` of the result says whether there are more.
            before: A job id; the list continues after it.

        Raises:
            InvalidRequestError: A filter is not one of these.
            NotFoundError: `before` is not one of your jobs.
        """
        wanted = {
            "search": search,
            "name": name,
            "state": [state] if isinstance(state, str) else list(state),
            "tag": [tag] if isinstance(tag, str) else list(tag),
            "environment": environment,
            "model": model,
            "archived": archived,
            "sort": sort,
            "limit": limit,
            "before": before,
        }
        found = self._api.jobs(parse(JobQuery, wanted))
        return JobTable(found.jobs, has_older=found.has_older)

    def compare(self, *jobs: str | Job) -> RunComparison:
        """Compare two to six runs: settings that differ, curves, and evaluations with their difference.

        Args:
            jobs: Jobs, or their ids or names. The first is what the others are compared with.

        Raises:
            InvalidRequestError: There are fewer than two different ones, or more than six.
            NotFoundError: One is not yours.
        """
        ids = dict.fromkeys(one.id if isinstance(one, Job) else self._job_id(one) for one in jobs)
        return RunComparison([overview_of(self._api, self._api.job(one), points=400) for one in ids])

    def models(self) -> list[ModelView]:
        """List the service's models."""
        return self._api.models()

    def environments(self) -> list[EnvironmentView]:
        """List the environments that the service can play. This machine does not need them."""
        return self._api.environments()

    def health(self) -> HealthView:
        """Return whether the service is complete, or which parts are missing."""
        return self._api.health()

    def policy(
        self,
        model: str = "nano",
        *,
        system_prompt: str | None = None,
        env: EnvSource | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        chat_template: str | Path = "",
        template_variables: Mapping[str, Any] | None = None,
        template_date: str = "",
        **decoding: Unpack[SeededOptions],
    ) -> Policy:
        """Return a policy to act with: a trained one, or an untrained model.

        Args:
            model: `job-...`, `job-.../AGENT` or `policy-...` for a trained policy, with `@40`, `@step:40`,
                `@best` or `@latest` for a version; a name to which a version was promoted, without its
                canary; the folder here of a PEFT adapter (`import_adapter`); or a model name of the service,
                a model directory on its machine, or a Hugging Face hub id.
            system_prompt: Precedes the first observation, instead of the environment's own. None is the
                prompt used in training, also for an exported folder (`job.export(..., merge=True)`).
            env: The environment in which you call `act`, as in `train`. Its system prompt is read here,
                because `act` only sees observations. Not needed for `evaluate`.
            env_kwargs: Arguments of `env`.
            chat_template: For an untrained model, instead of its own: Jinja text, the path of a file, or
                "plain". A trained policy always uses its training template.
            template_variables: Values of names that the chat template reads, such as
                `{"enable_thinking": False}`. They replace those of training, which apply otherwise.
            template_date: The date that the chat template writes, such as 2026-11-29. Empty is that of
                training, or today's for a model.
            **decoding: Fields of `Decoding`: temperature and max_turn_tokens, which are as in training if
                left out, or 1.0 and 64 for a model, top_p, top_k, structured, stop, and seed, which makes
                its actions repeatable.

        Raises:
            UnknownModelError: The service has no such model.
            NotFoundError: It is not one of your policies, or there is no such version.
            PolicyVersionGoneError: The version is not stored.
            InvalidRequestError: A setting is out of range, or a reference is malformed.
        """
        environment_prompt, own = (None, {}) if env is None else _prompt_of(describe(env, env_kwargs))
        template, variables = read_template(chat_template), dict(template_variables or {})
        if fault := variables_fault(variables) or day_fault(template_date):
            raise fault.error()
        model = self.import_adapter(model).id if is_adapter(model) else model
        if PolicyRef.is_meant(model):
            policy = self._trained_policy(PolicyRef.parse(model, field="model"), template, decoding)
            policy.template_variables |= variables
            policy.template_date = template_date or policy.template_date
            policy.system_prompt = policy.system_prompt if system_prompt is None else system_prompt
            if environment_prompt is not None:
                policy.environment_prompt = environment_prompt
            policy.environment_variables = policy.environment_variables if env is None else own
            return policy
        chosen = Decoding().with_options(**decoding)
        try:
            bundle = self._api.renderer(model, template)
        except UnknownModelError as error:
            served = {one.name: one.policy for one in self.served_names()}
            if model in served and not template:
                return self.policy(
                    served[model],
                    system_prompt=system_prompt,
                    env=env,
                    env_kwargs=env_kwargs,
                    template_variables=variables,
                    template_date=template_date,
                    **decoding,
                )
            error.hint = "; ".join(filter(None, [error.hint, _OF_A_JOB]))
            raise
        trained_with = bundle.trained_with or TrainedWith()
        variables = {**trained_with.template_variables, **variables}
        day = template_date or trained_with.template_date
        return Policy.of_model(
            self._api,
            bundle.model,  # Use one name for a folder, however the path is written here.
            renderer=Renderer.from_bundle(bundle.with_settings(variables, day)),
            decoding=chosen,
            system_prompt=trained_with.system_prompt if system_prompt is None else system_prompt,
            reasoning=trained_with.reasoning,
            tools=trained_with.tools,
            environment_prompt=environment_prompt,
            environment_variables=own,
            chat_template=template,
            template_variables=variables,
            template_date=day,
        )

    def _trained_policy(self, ref: PolicyRef, template: str, decoding: SeededOptions) -> Policy:
        if template:
            raise InvalidRequestError(
                "a trained policy always uses its training template",
                hint="leave it out",
                field="chat_template",
            )
        job_id, version, agent = self._api.trained_policy(ref)
        return self.job(job_id).policy(version, agent=agent, **decoding)

    def served_names(self) -> list[ServedName]:
        """Return the names to which versions were promoted with `job.promote`."""
        return self._api.served_names()

    def remove_name(self, name: str) -> list[ServedName]:
        """Remove a name; its policy stays. Returns the names that are left.

        Raises:
            NotFoundError: There is no such name.
        """
        return self._api.remove_name(name)

    def rollout_transport(self, job_id: str) -> HttpRolloutTransport:
        """Return the rollout transport of a job: leases, results, sampling, renderers."""
        return HttpRolloutTransport(self._connection, Routes.of_gateway(job_id))

    def ask(self, request: SampleRequest) -> Completion:
        """Send one sampling request and wait for its completion."""
        return ask(self._connection, request)

    def _play(
        self,
        kind: str,
        env: EnvSources,
        env_kwargs: Mapping[str, Any] | None,
        rollout: str | None,
        settings: Mapping[str, Any],
    ) -> Job:
        for name in ("environment", "environments"):
            if name in settings:
                raise InvalidRequestError("is already the first argument", hint="leave it out", field=name)
        environment = describe_mix(env, env_kwargs)
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
        if played.rollout == "client":
            return self._train_here(played, environment)
        try:
            return self.submit(spec)
        except UnknownEnvironmentError as error:
            of_evaluation = error.field == "evaluate"
            if rollout is not None or environment.unknown_here or of_evaluation:
                raise
        return self._train_here(played.model_copy(update={"rollout": "client"}), environment)

    def _train_here(self, spec: RLSpec | DistillationSpec, environment: EnvironmentMix) -> Job:
        if environment.unknown_here:
            raise UnknownEnvironmentError(
                f"{environment.unknown_here!r} is not registered in this process",
                hint="register it, pass its class to train(...), or let the service play",
                field="environment.id",
            )
        spec = spec.with_environments(lambda one: without_token(one) if one.id == REMOTE_ID else one)
        seen = check_environments(environment.make, spec, self._api.renderer_of(spec))
        recorded = {
            "environment_prompt": seen.system_prompt,
            "environment_variables": dict(seen.variables),
            "environment_data": dict(seen.data),
        }
        spec = spec.model_copy(update=recorded)
        noted = spec.with_evaluated_tasks(client_evaluations.tasks_in(environment.make, spec))
        noted = noted if isinstance(noted, Refusal) else noted.with_group_rewards(seen.pays_groups)
        if isinstance(noted, Refusal):
            raise noted.error()
        spec = noted.seated(seen.agents, seen.offered)
        return self._play_here(self.submit(spec).view(), environment.make)

    def _train_written(self, spec: SFTSpec | PreferenceSpec, evaluate: object) -> Job:
        if spec.played_by != "client":
            return self.submit(spec)
        make_env = client_evaluations.maker_of(client_evaluations.sources_in(evaluate), spec)
        client_evaluations.check(make_env, spec, self._api.renderer_of(spec))
        noted = spec.with_evaluated_tasks(client_evaluations.tasks_in(make_env, spec))
        if isinstance(noted, Refusal):
            raise noted.error()
        job = self.submit(noted)
        return self._play_here(job.view(), make_env)

    def _play_here(self, view: JobView, make_env: MakeEnv, sessions: SessionServer | None = None) -> Job:
        transport, spec = self.rollout_transport(view.job_id), view.spec
        played = spec.played
        episodes = played.groups.episodes if played else client_evaluations.most_at_once(spec)
        # One more than a step has, so a request for episodes is always open. When this process is killed, the
        # service sees it break and gives the episodes to the next client instead of waiting for the leases.
        at_once = min(MOST_EPISODES_AT_ONCE, episodes) + 1
        thread = RolloutThread(
            transport,
            make_env,
            job_id=view.job_id,
            max_episodes=at_once,
            recorder=sessions,
        )
        thread.start()
        return Job(self._api, view, rollout=thread)


class _ProbingClient(Client):
    """Starts short jobs instead of the requested ones, and remembers the requested one."""

    def __init__(self, client: Client) -> None:
        self.url, self._connection, self._api = client.url, client._connection, client._api
        self.wanted: JobSpec | None = None

    def submit(self, spec: JobSpec) -> Job:
        """Start a probe of a job."""
        self.wanted = spec
        return super().submit(probe_of(spec))


def _given(**required: Any) -> dict[str, Any]:
    """Drop arguments that were not given, so that a missing one is reported together with a misspelt one."""
    return {name: value for name, value in required.items() if value is not None}


def _prompt_of(environment: Environment) -> tuple[str | None, dict[str, Any]]:
    """Return an environment's own system prompt, and its template variables."""
    env = made(environment.make or make_environment, environment.ref)
    try:
        return system_prompt_of(env), template_variables_of(env)
    finally:
        env.close()


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
