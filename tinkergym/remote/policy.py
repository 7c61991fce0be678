"""A policy of the service to act with: text in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Unpack

from tinkergym.datasets.rows import DataSource
from tinkergym.errors import InvalidRequestError, ServiceUnavailableError, from_wire
from tinkergym.evaluation.evaluate import EnvironmentSource, Evaluation, evaluate
from tinkergym.messages import Observation
from tinkergym.remote.api import Api
from tinkergym.remote.generating import IN_FLIGHT, Generated, GenerateOptions, generate
from tinkergym.remote.known_policy import KnownPolicy
from tinkergym.remote.policy_chat import PolicyChat
from tinkergym.schema.decoding import Decoding, DecodingOptions, SeededOptions
from tinkergym.schema.evaluation import EvaluationEpisode, EvaluationLine, EvaluationRequest
from tinkergym.schema.jobs.parts import EnvironmentRef


class Policy(KnownPolicy):
    """Acts on observations, in any number of threads.

    `act` answers one observation as if it were the first, whatever was asked before:

        answers = [policy.act(question) for question in questions]

    An episode of several turns is a conversation: `chat` returns one, which remembers what it was shown, as
    in training. `tinkergym.evaluate` and `TrainRemotely` do this themselves.
    """

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
        yield from _played_there(self._api, wanted)

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


def _played_there(api: Api, wanted: EvaluationRequest) -> Iterator[EvaluationLine]:
    """Yield each episode of an evaluation that the service plays, and refuse one that breaks off."""
    missing = {episode.episode_id for episode in wanted.episodes}
    for line in api.evaluate(wanted):
        if line.error is not None:
            raise from_wire(line.error.model_dump())
        missing.discard(line.episode_id)
        yield line
    if missing:
        raise ServiceUnavailableError(
            f"the service broke off an evaluation with {len(missing)} episodes to play",
            hint="evaluate again",
        )
