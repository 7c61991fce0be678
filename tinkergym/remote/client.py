"""The client: submit jobs to a service and use their policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Self

from tinkergym.display.job_table import JobTable
from tinkergym.errors import (
    InvalidRequestError,
    ServiceUnreachableError,
)
from tinkergym.recording.agent_program import Play
from tinkergym.recording.session_server import SessionServer
from tinkergym.remote import client_evaluations, discovery
from tinkergym.remote.agent_jobs import MakeProgram, Tasks, check_tasks, program_ref
from tinkergym.remote.api import Api
from tinkergym.remote.ask import ask
from tinkergym.remote.estimate import Estimate, ProbeStarter, estimate_from, estimate_from_earlier
from tinkergym.remote.job import Job
from tinkergym.remote.job_starter import JobStarter
from tinkergym.remote.overview import overview_of
from tinkergym.remote.rollout_transport import HttpRolloutTransport, Routes
from tinkergym.remote.transport import Connection
from tinkergym.reporting.run_comparison import RunComparison
from tinkergym.reporting.trackers import ReportTo, callbacks_of
from tinkergym.rollout.environment_mix import EnvSources, makers_of
from tinkergym.rollout.local_environment import EnvSource
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.parsing import parse
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.schema.summaries import JobOrder, JobQuery
from tinkergym.schema.versions import __version__, require_same_version
from tinkergym.schema.views import EnvironmentView, HealthView, ModelView

_MOST_EARLIER = 8
"""Jobs of the same kind and model that an estimate without a trial looks at."""
FIRST_PATIENCE_SECONDS = 1.0
"""A wrong address should fail soon; after the first response, the service may be away for longer."""


class Client(JobStarter):
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
        super().__init__(Api(connection))
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
        probing = ProbeStarter(self._api)
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
        spec, played = view.spec, view.spec.played
        if spec.played_by != "client" and env is not None:
            raise InvalidRequestError(
                f"the episodes of {job_id} are not played by a client", hint="leave it out", field="env"
            )
        # Only to watch: the evaluations of a job on a dataset wait.
        if spec.played_by != "client" or (env is None and (view.state.final or not played)):
            return Job(self._api, view)
        if played:
            make_env = makers_of(env, played)
        else:
            make_env = client_evaluations.maker_of(env if isinstance(env, list | tuple) else [env], spec)
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

    def rollout_transport(self, job_id: str) -> HttpRolloutTransport:
        """Return the rollout transport of a job: leases, results, sampling, renderers."""
        return HttpRolloutTransport(self._connection, Routes.of_gateway(job_id))

    def ask(self, request: SampleRequest) -> Completion:
        """Send one sampling request and wait for its completion."""
        return ask(self._connection, request)
