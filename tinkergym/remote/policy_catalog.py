"""The policies of a service: trained ones, models, imported adapters, and names that serve them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.rows import DataSource
from tinkergym.errors import (
    InvalidRequestError,
    UnknownModelError,
)
from tinkergym.registration.environments import make_environment
from tinkergym.remote.adapter_import import begin_from, begin_seats, import_adapter, is_adapter
from tinkergym.remote.api import Api
from tinkergym.remote.generating import GenerateOptions
from tinkergym.remote.import_guard import refuse_while_imported
from tinkergym.remote.inference_jobs import inference_job
from tinkergym.remote.job import Job
from tinkergym.remote.policy import Policy
from tinkergym.remote.training_policy import TrainingPolicy
from tinkergym.remote.user_files import read_template, with_template_read
from tinkergym.rollout.environment_host import system_prompt_of, template_variables_of
from tinkergym.rollout.executors import made
from tinkergym.rollout.local_environment import (
    Environment,
    EnvSource,
    describe,
    installed_packs,
)
from tinkergym.schema.chat_templates import day_fault, variables_fault
from tinkergym.schema.decoding import Decoding, SeededOptions
from tinkergym.schema.ids import PolicyRef, is_job_id, is_policy_id
from tinkergym.schema.jobs.parts import Adapter, Budget, LoRA
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.jobs.training_spec import TrainingSpec
from tinkergym.schema.parsing import parse_spec, refuse_recorded
from tinkergym.schema.served_names import ServedName
from tinkergym.schema.summaries import JobQuery
from tinkergym.schema.views import PolicyView, RendererBundle, TrainedWith

_OF_A_JOB = "client.job(JOB_ID).policy() returns a job's policy"


class PolicyCatalog:
    """Finds policies by what a user calls them, to act with, to sample a dataset with, or to train.

    A policy acts as in training, or as the model does if it was not trained. No episode is played here.
    """

    def __init__(self, api: Api) -> None:
        """Look up in a service.

        Args:
            api: The service's API.
        """
        self._api = api

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
                `@best` or `@latest` for a version; a job's name, or one to which a version was promoted,
                without its canary; the folder here of a PEFT adapter (`import_adapter`); or a model name of
                the service, a model directory on its machine, or a Hugging Face hub id.
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
        if not PolicyRef.is_meant(model):
            chosen = Decoding().with_options(**decoding)
            found = self._bundle_or_served(model, template)
            if isinstance(found, RendererBundle):
                trained_with = found.trained_with or TrainedWith()
                variables = {**trained_with.template_variables, **variables}
                day = template_date or trained_with.template_date
                return Policy.of_model(
                    self._api,
                    found.model,  # Use one name for a folder, however the path is written here.
                    renderer=Renderer.from_bundle(found.with_settings(variables, day)),
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
            model = found
        policy = self._trained_policy(PolicyRef.parse(model, field="model"), template, decoding)
        policy.template_variables |= variables
        policy.template_date = template_date or policy.template_date
        policy.system_prompt = policy.system_prompt if system_prompt is None else system_prompt
        if environment_prompt is not None:
            policy.environment_prompt = environment_prompt
        policy.environment_variables = policy.environment_variables if env is None else own
        return policy

    def _bundle_or_served(self, model: str, template: str) -> RendererBundle | str:
        """Return a model's renderer, or the policy to which a name was promoted, or the job of that name."""
        try:
            return self._api.renderer(model, template)
        except UnknownModelError as error:
            served = {one.name: one.policy for one in self.served_names()}
            if model in served and not template:
                return served[model]
            if not template and (named := self._job_id(model)) != model:
                return named
            error.hint = "; ".join(filter(None, [error.hint, _OF_A_JOB]))
            raise

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

    def _trained_policy(self, ref: PolicyRef, template: str, decoding: SeededOptions) -> Policy:
        if template:
            raise InvalidRequestError(
                "a trained policy always uses its training template",
                hint="leave it out",
                field="chat_template",
            )
        job_id, version, agent = self._api.trained_policy(ref)
        return Job(self._api, self._api.job(job_id)).policy(version, agent=agent, **decoding)

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

    def submit(self, spec: JobSpec) -> Job:
        """Start a job from a complete specification. The caller arranges who plays its episodes."""
        refuse_while_imported()
        # One key per call: if the response is lost and the request repeated, it is still one job.
        packs = installed_packs() if spec.played_by in ("client", "script") else []
        return Job(self._api, self._api.create_job(spec, idempotency_key=uuid.uuid4().hex, packs=packs))

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

    def served_names(self) -> list[ServedName]:
        """Return the names to which versions were promoted with `job.promote`."""
        return self._api.served_names()

    def remove_name(self, name: str) -> list[ServedName]:
        """Remove a name; its policy stays. Returns the names that are left.

        Raises:
            NotFoundError: There is no such name.
        """
        return self._api.remove_name(name)

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
        until the policy has a slot.

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

    def training_policy(self, policy_id: str) -> TrainingPolicy:
        """Open a policy that `create_policy` created, in this script or another.

        Only one script may train it at a time. Calls from a second one would have the same sequence numbers
        and are refused.

        Args:
            policy_id: `TrainingPolicy.job_id`, or the `policy-...` that `find_policy` returns for it.
        """
        if is_policy_id(policy_id):
            policy_id = self._api.find_policy(policy_id).job_id
        view = self._api.job(policy_id)
        return TrainingPolicy(self._api, view, self._renderer(view.spec))

    def _renderer(self, spec: TrainingSpec) -> Renderer:
        return Renderer.from_bundle(self._api.renderer_of(spec))

    def import_adapter(self, source: str | PathLike[str], *, model: str = "", name: str = "") -> Job:
        """Make a policy of a LoRA adapter that PEFT saved, or that was exported here or elsewhere.

        Sending it takes no slot. The same adapter is kept once.

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
        """Return a job's adapter, by default that of its initial policy, and settings with references.

        Adapters that are named by their folders or hub ids are imported, also those of single seats.
        """
        known = None
        if "agents" in settings:
            settings = {**settings, "agents": begin_seats(self._api, settings["agents"], model, adapter)}
        if begins := settings.get("initial_policy"):
            reference, known = begin_from(self._api, begins, model)
            settings = {**settings, "initial_policy": reference}
        return (known or LoRA()) if adapter is None else adapter, settings


def _prompt_of(environment: Environment) -> tuple[str | None, dict[str, Any]]:
    """Return an environment's own system prompt, and its template variables."""
    env = made(environment.make or make_environment, environment.ref)
    try:
        return system_prompt_of(env), template_variables_of(env)
    finally:
        env.close()
