"""A policy of the service to act with: text in, text out."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np

from tinkergym.agent.renderer import Renderer
from tinkergym.agent.template_variables import writes_date
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.datasets.rows import DataSource
from tinkergym.display.html import card
from tinkergym.errors import InvalidRequestError, ServiceUnavailableError, from_wire
from tinkergym.evaluation.evaluate import EnvironmentSource, Evaluation, evaluate
from tinkergym.messages import Observation
from tinkergym.remote.api import Api
from tinkergym.remote.ask import SAMPLE_PATH
from tinkergym.remote.generating import IN_FLIGHT, Generated, GenerateOptions, generate
from tinkergym.remote.http_sampler import HttpSampler
from tinkergym.remote.policy_chat import PolicyChat
from tinkergym.remote.transport import Connection
from tinkergym.schema.decoding import Decoding, DecodingOptions, SeededOptions
from tinkergym.schema.evaluation import EvaluationEpisode, EvaluationLine, EvaluationRequest
from tinkergym.schema.ids import PolicyRef, policy_of
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits, Reasoning
from tinkergym.schema.jobs.seats import SharedWith, Train
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.sampling import SampleRequest
from tinkergym.schema.seat_tools import SeatTools

_MOST_ASKED = 100_000
"""Prompts whose number of calls a policy remembers."""


class Policy:
    """Acts on observations, in any number of threads.

    `act` answers one observation as if it were the first, whatever was asked before:

        answers = [policy.act(question) for question in questions]

    An episode of several turns is a conversation: `chat` returns one, which remembers what it was shown, as
    in training. `tinkergym.evaluate` and `TrainRemotely` do this themselves.
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
        self._asked: BoundedDict[bytes, int] = BoundedDict(_MOST_ASKED)
        """How often each prompt was asked."""
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
        as_trained = Decoding(**spec.sampling.model_dump())
        played: dict[str, Any] = {}
        if own := spec.played:
            played = {
                "limits": own.limits,
                "system_prompt": own.system_prompt,
                "reasoning": own.reasoning,
                "environment_prompt": own.environment_prompt,
                "environment_variables": own.environment_variables,
                "tools": own.tools_of(trained),
                # What an initial policy was trained in is not known here.
                "trained_in": () if spec.initial_policy else tuple(own.own_environments.values()),
            }
        return cls(
            api,
            name=policy_of(view.job_id, trained),
            model=spec.model,
            chat_template=spec.chat_template,
            template_variables=spec.template_variables,
            template_date=spec.template_date,
            version=version,
            decoding=as_trained.with_options(**decoding),
            **played,
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

    def play_there(
        self,
        environment: EnvironmentRef,
        episodes: Sequence[EvaluationEpisode],
        decoding: Decoding,
    ) -> Iterator[EvaluationLine]:
        """Let the service play episodes in an environment that is installed there; see `evaluate`.

        Raises:
            TinkerGymError: The service refused it, or it broke off.
        """
        if self.tools is not None:
            raise InvalidRequestError(
                f"{self.name} was trained with tools, which the service cannot offer in {environment.id}",
                hint="install the environment's pack here, so that this process plays the episodes",
                field="environment",
            )
        missing = {episode.episode_id for episode in episodes}
        wanted = EvaluationRequest(
            environment=environment,
            policy=self.name,
            model=self.model,
            chat_template=self.chat_template,
            template_variables=self.template_variables,
            template_date=self.template_date,
            policy_version=self.version,
            **decoding.model_dump(exclude={"seed"}),
            limits=self.limits,
            system_prompt=self.system_prompt,
            reasoning=self.reasoning,
            episodes=list(episodes),
        )
        for line in self._api.evaluate(wanted):
            if line.error is not None:
                raise from_wire(line.error.model_dump())
            missing.discard(line.episode_id)
            yield line
        if missing:
            raise ServiceUnavailableError(
                f"the service broke off an evaluation with {len(missing)} episodes to play",
                hint="evaluate again",
            )

    def chat(self, *, seed: int | None = None) -> PolicyChat:
        """Return a new conversation, for the observations of an episode of several turns.

        Args:
            seed: Seed of its first episode's actions, combined with the policy's own. The same two give the
                same actions, whatever was played before. None takes it from the first observation, and from
                how often this object was shown it.
        """
        return PolicyChat(self, seed=seed)

    def act(
        self,
        observation: Observation,
        info: Mapping[str, Any] | None = None,
        *,
        template_variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Answer an observation independently of all others; see `chat` for a conversation.

        Threads may call it at the same time and get the answers of one call after another. With a temperature
        above 0, an observation that is asked again is sampled anew.

        A policy that was trained with tools calls them here before it answers, up to their `max_calls`.

        Args:
            observation: Text, messages, or a mapping of them; see `tinkergym.messages`.
            info: What `env.reset` returned with it: its `template_variables` apply, except those that the
                policy was trained with.
            template_variables: Values for this call that replace all others.

        Returns:
            The answer.

        Raises:
            PromptTooLongError: The observation leaves no room for a completion in the model's context.
            EpisodeProtocolError: The observation cannot be read.
            ServiceUnavailableError: Sampling failed; try again.
            InvalidToolError: A tool that it was trained with is not installed here.
            TemplateError: The chat template does not use one of `template_variables`.
        """
        with closing(self.chat()) as chat:
            answer = chat.act(observation, info, template_variables=template_variables)
            self.last_version = chat.last_version
            return answer

    def evaluate(
        self,
        env: EnvironmentSource,
        *,
        episodes: int | None = None,
        samples: int = 1,
        seed: int = 0,
        split: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        progress: bool | None = None,
        **decoding: Unpack[DecodingOptions],
    ) -> Evaluation:
        """Play held-out episodes and return wins, draws, losses and intervals.

        Args:
            env: A registered id, an environment class, or a function that makes one. An id that is not known
                here is played by the service.
            episodes: How many; None plays every task of a split once, see `tinkergym.evaluate`.
            samples: Episodes of each task, if every task is played.
            seed: The episodes have the seeds `seed`, `seed + 1`, ...
            split: Short for `env_kwargs={"split": ...}`.
            env_kwargs: Arguments of the environment.
            progress: Show on stderr how many episodes have ended; None does so only on a terminal.
            **decoding: As for `tinkergym.evaluate`: temperature, which is 0 if left out, top_p, top_k,
                max_turn_tokens, structured, stop.

        Raises:
            TinkerGymError: As for `tinkergym.evaluate`.
        """
        return evaluate(
            self,
            env,
            episodes=episodes,
            samples=samples,
            seed=seed,
            split=split,
            env_kwargs=env_kwargs,
            progress=progress,
            **decoding,
        )

    def generate(
        self,
        data: DataSource,
        out: str | Path,
        *,
        n: int = 1,
        max_tokens: int | None = None,
        resume: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        keep: Sequence[str] = (),
        ignore: Sequence[str] = (),
        token_ids: bool = False,
        logprobs: bool = False,
        in_flight: int = IN_FLIGHT,
        progress: bool | None = None,
        **decoding: Unpack[SeededOptions],
    ) -> Generated:
        """Sample completions of a dataset's rows, and write them to a file in the order of the rows.

        A row that cannot be sampled, because its prompt is too long for example, is a line with an `error`. A
        run that was stopped, by whatever, is continued with `resume`: no line is lost or written twice, and
        each has the seed that it would have had.

        Args:
            data: A file or folder, a list of rows, or a task source, in any layout that training reads. A
                row's own answer is left out.
            out: The file: JSON lines, or Parquet if it ends in `.parquet`. One line per completion.
            n: Completions per row.
            max_tokens: The longest completion, as `max_turn_tokens`.
            resume: Continue `out` if it exists, with the same data and settings.
            tools: Functions for rows that have none of their own, as in OpenAI's API. Calls in answers are
                parsed.
            keep: Columns of the data to copy to the results, such as an id.
            ignore: Columns to skip.
            token_ids: Write the sampled token ids, too.
            logprobs: Write their logprobs, too.
            in_flight: The most requests at a time.
            progress: Show progress on stderr; None does so only on a terminal.
            **decoding: As for `Job.policy`: temperature, top_p, top_k, structured, stop, seed.

        Raises:
            InvalidRequestError: The data cannot be read, a setting is invalid, or `out` exists.
            ConflictError: `out` has results of other data or settings.
            StorageFullError: The disk is full. What was written is kept.
            ServiceUnavailableError: The service did not respond for ten minutes. What was written is kept.
        """
        if max_tokens is not None:
            decoding["max_turn_tokens"] = max_tokens
        options = GenerateOptions(
            n=n,
            resume=resume,
            tools=tuple(tools),
            keep=tuple(keep),
            ignore=tuple(ignore),
            token_ids=token_ids,
            logprobs=logprobs,
            in_flight=in_flight,
            progress=progress,
        )
        return generate(self, data, out, self.decoding.with_options(**decoding), options)

    def settled_version(self) -> int | None:
        """Return the version to use from now on: its own, or the newest one now; None for a model."""
        if not PolicyRef.is_meant(self.name) or self.version is not None:
            return self.version
        return self._api.job(PolicyRef.parse(self.name).owner).policy_version

    def sampling_seed(self, first: SampleRequest, seed: int | None) -> int:
        """Return the seed of a conversation's first turn.

        Args:
            first: Its first request. Without a seed, different prompts sample independently, in any order.
            seed: As for `chat`.
        """
        if seed is not None:
            entropy = [self.decoding.seed, seed, 1]  # The 1 separates given seeds from others.
        else:
            prompt = [first.prompt_ids, [span.sha256 for span in first.images]]
            digest = hashlib.blake2b(json.dumps(prompt).encode(), digest_size=16).digest()
            with self._lock:
                before = self._asked.get(digest, 0)
                self._asked[digest] = before + 1
            entropy = [self.decoding.seed, int.from_bytes(digest), before]
        drawn = int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])
        return drawn >> 1  # Room for later turns.


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
