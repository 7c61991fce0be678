"""Which policy it is, and how its prompts are written."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Self, Unpack

from tinkergym.agent.renderer import Renderer
from tinkergym.agent.template_variables import writes_date
from tinkergym.display.html import card
from tinkergym.errors import InvalidRequestError
from tinkergym.remote.api import Api
from tinkergym.remote.ask import SAMPLE_PATH
from tinkergym.remote.http_sampler import HttpSampler
from tinkergym.remote.policy_chat import PromptSeeds
from tinkergym.remote.transport import Connection
from tinkergym.schema.decoding import Decoding, SeededOptions
from tinkergym.schema.ids import PolicyRef, policy_of
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits, Reasoning
from tinkergym.schema.jobs.seats import SharedWith, Train
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.seat_tools import SeatTools


class KnownPolicy:
    """A policy or model of the service, its version, and how it acts: enough to plan an episode.

    Prompts are rendered as in training. It is not asked here.
    """

    def __init__(
        self,
        api: Api,
        *,
        name: str,
        model: str,
        version: int | None = None,
        decoding: Decoding | None = None,
        limits: Limits | None = None,
        system_prompt: str | None = None,
        reasoning: Reasoning = "keep",
        environment_prompt: str | None = None,
        environment_variables: Mapping[str, Any] | None = None,
        renderer: Renderer | None = None,
        chat_template: str = "",
        template_variables: Mapping[str, Any] | None = None,
        template_date: str = "",
        tools: SeatTools | None = None,
        trained_in: Sequence[EnvironmentRef] = (),
    ) -> None:
        """Wrap a policy. Users get one from `Job.policy` or `Client.policy`.

        Args:
            api: The service's API.
            name: A job's id or a model's name.
            model: Whose renderer turns text into token ids.
            version: None uses the newest for every action.
            decoding: How its completions are sampled; None is as a model without an adapter is.
            limits: Limits of an episode.
            system_prompt: Precedes the first observation; None uses the environment's own.
            reasoning: Whether later turns see the `<think>...</think>` of earlier completions.
            environment_prompt: The environment's own system prompt, which `act` cannot see.
            environment_variables: The template variables of the environment's class, which it cannot see
                either without an `info`.
            renderer: The model's renderer, if already loaded.
            chat_template: Replaces the model's own.
            template_variables: Values of names that the chat template reads; they replace those of
                environments and tasks.
            template_date: The date that the chat template writes.
            tools: Tools that it calls before it answers; see `act`.
            trained_in: The environments in which its job trained it.
        """
        self.trained_in = tuple(trained_in)
        """The environments in which its job trained it; evaluations name the tasks they share with these."""
        self._api = api
        self.name, self.model, self.version = name, model, version
        self.decoding = decoding or Decoding()
        self.limits = limits or Limits()
        self.system_prompt, self.environment_prompt = system_prompt, environment_prompt
        self.environment_variables = dict(environment_variables or {})
        self.reasoning = reasoning
        self._renderer, self.chat_template = renderer, chat_template
        self.template_variables, self.template_date = dict(template_variables or {}), template_date
        self.tools = tools
        self._lock = threading.Lock()
        self.seeds = PromptSeeds()
        """Seeds of the conversations that begin with a prompt."""
        self.last_version: int | None = None
        """The version that sampled the last answer of `act`, of any thread."""

    @classmethod
    def of_job(
        cls,
        api: Api,
        view: JobView,
        *,
        version: int | None,
        agent: str = "",
        **decoding: Unpack[SeededOptions],
    ) -> Self:
        """Return the policy that a job trains. It acts as in training, except for `decoding`.

        Raises:
            InvalidRequestError: `agent` is not a trained seat of the job, or is missing for a job that trains
                several policies; or one of `decoding` is out of range.
        """
        trained = _trained_at(view, agent)
        spec = view.spec.for_agent(trained)
        return cls(
            api,
            name=policy_of(view.job_id, trained),
            model=spec.model,
            chat_template=spec.chat_template,
            template_variables=spec.template_variables,
            template_date=spec.template_date,
            version=version,
            decoding=Decoding(**spec.sampling.model_dump()).with_options(**decoding),
            **_played_with(spec, trained),
        )

    @classmethod
    def of_model(cls, api: Api, model: str, **settings: Any) -> Self:
        """Return a model without an adapter; `settings` as in `__init__`."""
        return cls(api, name=model, model=model, **settings)

    @property
    def reference(self) -> str:
        """The name of this version, such as `job-ID@40`; `name` if it is the newest, or a model."""
        return self.name if self.version is None else str(PolicyRef.parse(self.name).at(self.version))

    def __repr__(self) -> str:
        return f"<Policy {self.reference} of {self.model}, temperature {self.decoding.temperature:g}>"

    def _repr_html_(self) -> str:
        """Show in a notebook who answers, and how."""
        rows = {
            "version": "newest" if self.version is None else self.version,
            "model": self.model,
            "temperature": f"{self.decoding.temperature:g}",
            "tokens of an answer": f"up to {self.decoding.max_turn_tokens}",
            "system prompt": self.environment_prompt if self.system_prompt is None else self.system_prompt,
        }
        return card(f"Policy {self.name}", {name: value for name, value in rows.items() if value is not None})

    @property
    def renderer(self) -> Renderer:
        """Turns messages into the model's token ids; fetched from the service once."""
        with self._lock:
            if self._renderer is None:
                bundle = self._api.renderer(self.model, self.chat_template)
                own = bundle.with_settings(self.template_variables, self.template_date)
                self._renderer = Renderer.from_bundle(own)
            return self._renderer

    def renderer_on(self, day: str | None = None) -> tuple[Renderer, str]:
        """Return a renderer for prompts that may be rendered on several days, and the date that it writes.

        Args:
            day: The date of the first day, or empty if none was noted; None is today.
        """
        bundle = self._api.renderer(self.model, self.chat_template)
        if self.template_date or not writes_date(bundle.chat_template) or day == "":
            return self.renderer, self.template_date
        day = day or date.today().isoformat()
        return Renderer.from_bundle(bundle.with_settings(self.template_variables, day)), day

    @property
    def connection(self) -> Connection:
        """The connection to its service."""
        return self._api.connection

    def sampler(self) -> HttpSampler:
        """Return a sampler for many concurrent conversations; the caller closes it."""
        return HttpSampler(self._api.connection, SAMPLE_PATH)

    def settled_version(self) -> int | None:
        """Return the version to use from now on: its own, or the newest one now; None for a model."""
        if not PolicyRef.is_meant(self.name) or self.version is not None:
            return self.version
        return self._api.job(PolicyRef.parse(self.name).owner).policy_version


def _trained_at(view: JobView, agent: str) -> str:
    """Return the agent whose policy plays a seat; empty for a job's only one."""
    spec = view.spec
    agents = spec.seats
    if spec.samples_only:
        raise InvalidRequestError(
            f"{view.job_id} samples another policy and trains none", hint="use that policy", field="policy"
        )
    if not agents and not agent:
        return ""
    trained_agents = spec.trained_agents
    if not agent and len(trained_agents) == 1:
        agent = trained_agents[0]
    if agent not in agents:
        names = ", ".join(repr(name) for name in agents)
        raise InvalidRequestError(
            f"{view.job_id} has no agent {agent!r}" if agent else f"{view.job_id} trains several policies",
            hint=f"name one of its agents: {names}" if names else "leave agent out: it trains one policy",
            field="agent",
        )
    seat = agents[agent]
    if not isinstance(seat, Train | SharedWith):
        raise InvalidRequestError(
            f"{view.job_id} trains no policy of agent {agent!r}",
            hint=f"name one of {', '.join(map(repr, trained_agents))}",
            field="agent",
        )
    return seat.agent if isinstance(seat, SharedWith) else agent


def _played_with(spec: JobSpec, agent: str) -> dict[str, Any]:
    """Return what a policy has of the episodes that its job plays."""
    own = spec.played
    if own is None:
        return {}
    return {
        "limits": own.limits,
        "system_prompt": own.system_prompt,
        "reasoning": own.reasoning,
        "environment_prompt": own.environment_prompt,
        "environment_variables": own.environment_variables,
        "tools": own.tools_of(agent),
        # What an initial policy was trained in is not known here.
        "trained_in": () if spec.initial_policy else tuple(own.own_environments.values()),
    }
