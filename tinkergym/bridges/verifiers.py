"""A verifiers environment as a `gymnasium.Env`, without changes to it, in a separate process.

verifiers and this project pin different versions of the same packages, so `TINKERGYM_VERIFIERS_PYTHON` can
name the Python of a separate virtual environment, which does not need tinkergym.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, cast, get_args

import gymnasium as gym

from tinkergym.bridges.verifiers_process import PYTHON_VARIABLE, Answer, VerifiersProcess, process_for
from tinkergym.errors import (
    EnvironmentInfrastructureError,
    EpisodeProtocolError,
    InvalidEnvironmentError,
    InvalidRequestError,
    InvalidRewardError,
)
from tinkergym.messages import ROLES, Message
from tinkergym.spaces import Chat, Text
from tinkergym.tasks.grid import with_tasks
from tinkergym.tasks.source import Task, TaskSource
from tinkergym.tool_calls.call import MalformedCall
from tinkergym.tool_calls.syntax import Syntax, parse_calls
from tinkergym.tools.prompt import describe_schemas
from tinkergym.user_code.quoting import quoted
from tinkergym.user_code.returned_values import finite_json_number

Split = Literal["train", "eval"]
_NAME = re.compile(r"[\w./:@-]{1,200}")
_QUESTION_SECONDS = 60.0
_DATASET_SECONDS = 600.0
"""For a question that may load a dataset."""
_MOST_STOP = 200
"""Characters of the name of a stop condition."""


class VerifiersTasks(TaskSource):
    """The rows of an environment's dataset. They stay in its process; here a task is a row's number."""

    splits = get_args(Split)

    def __init__(self, environment: str, arguments: Mapping[str, Any], split: str) -> None:
        """Find the rows.

        Raises:
            InvalidRequestError: The split does not exist.
        """
        if split not in self.splits:
            raise InvalidRequestError(f"there is no split {split!r}", hint="train or eval", field="split")
        self.split: str | None = split
        self._environment, self._arguments = environment, dict(arguments)
        self._count = 0

    @property
    def name(self) -> str:
        """Describe the environment."""
        return f"the dataset of {self._environment}"

    @property
    def fingerprint(self) -> str:
        """Digest of the rows."""
        answer = self._ask("fingerprint")
        with _readable(self._environment):
            return str(answer["fingerprint"])

    def __len__(self) -> int:
        if not self._count:
            answer = self._ask("rows")
            with _readable(self._environment):
                count = int(answer["count"])
                if count < 0:
                    raise ValueError(f"{count} rows")
            self._count = count
        return self._count

    def read(self, index: int) -> Task:
        """Return the row's number."""
        return {"row": index}

    def _ask(self, do: str) -> Answer:
        process = process_for(self._environment, self._arguments)
        return process.ask(do, split=self.split, timeout_seconds=_DATASET_SECONDS)


class VerifiersEnv(gym.Env[list[Message], str]):
    """A published verifiers environment, unchanged: its data, prompts, turns and rubric.

    Each completion that the environment requests is a step; an observation contains the new messages. The
    rubric is called once, at the end, and the whole reward comes with the last step. Limits of the
    environment truncate the episode. If it raises an error, the episode is lost.

    Example:
        >>> tg.register("published/Reverse-v0", VerifiersEnv, kwargs={"environment": "reverse-text"})
    """

    metadata: dict[str, Any] = {"render_modes": [], "turns": "multi", "data": "dependent"}  # noqa: RUF012 - Gymnasium declares it so

    def __init__(
        self,
        environment: str,
        *,
        arguments: Mapping[str, Any] | None = None,
        split: Split = "train",
        tool_syntax: Syntax = "hermes",
        step_timeout_seconds: float = 60.0,
        render_mode: str | None = None,
    ) -> None:
        """Load the environment, in a process shared by all of this program's environments of its kind.

        Args:
            environment: An id of a taskset, an id for `verifiers.load_environment`, or `module:attribute`.
            arguments: The taskset's settings, or arguments of `load_environment` or of the attribute.
            split: Its `train` or `eval` dataset; a taskset has only `train`.
            tool_syntax: The syntax of tool calls, if the environment has tools.
            step_timeout_seconds: Time limit between two completions.
            render_mode: Must be None; there is nothing to render.

        Raises:
            InvalidEnvironmentError: verifiers is not installed, or it cannot load the environment; or the
                environment has several agents, or compares rollouts with each other.
            InvalidRequestError: The split does not exist.
        """
        self.render_mode = render_mode
        self.observation_space: gym.Space[list[Message]] = Chat()
        self.action_space: gym.Space[str] = Text()
        if not _NAME.fullmatch(environment):
            raise InvalidRequestError(f"{environment!r} is not a valid environment name", field="environment")
        self._environment, self._arguments = environment, dict(arguments or {})
        self._syntax, self._seconds = tool_syntax, step_timeout_seconds
        self.tasks = VerifiersTasks(environment, self._arguments, split)
        about = self._process().ask("about", split=split, timeout_seconds=_DATASET_SECONDS)
        _refuse(environment, about, split)
        self._prompt = str(about["system_prompt"])
        with _readable(environment):
            told = "\n\n".join(filter(None, [self._prompt, _offered(about["tools"], tool_syntax)]))
        cell = with_tasks(self.metadata, self.tasks)
        self.metadata = {**cell, "system_prompt": told} if told else cell
        self._playing: tuple[VerifiersProcess, str] | None = None
        self._seen: list[Message] = []
        self._has_tools = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Start with row number `options["task_index"]`, or one drawn by the seed.

        Raises:
            EnvironmentInfrastructureError: The environment failed, or ended before it requested anything.
        """
        super().reset(seed=seed)
        index, _ = self.tasks.choose(self.np_random, options)
        self.end_episode()
        process, episode = self._process(), uuid.uuid4().hex
        self._playing, self._seen = (process, episode), []
        first = self._ask("begin", episode=episode, split=self.tasks.split, row=index)
        if "ended" in first:
            self._playing = None
            raise EnvironmentInfrastructureError(
                f"{self._environment} ended row {index} before it requested a completion",
                hint="check whether its setup reported an error",
            )
        shown = self._news(first)
        # Already in the environment's system prompt.
        said = shown and shown[0]["role"] == "system" and shown[0]["content"] == self._prompt
        return shown[1:] if said else shown, {"row": index}

    def step(self, action: str) -> tuple[list[Message], float, bool, bool, dict[str, Any]]:
        """Pass the requested completion to the environment.

        Raises:
            EpisodeProtocolError: No episode is running.
            EnvironmentInfrastructureError: The environment failed, and the episode is lost.
            InvalidRewardError: Its rubric did not return a finite number.
        """
        if self._playing is None:
            raise EpisodeProtocolError("no episode is running", hint="call reset before step")
        calls = parse_calls(action, self._syntax) if self._has_tools else []
        malformed = sum(isinstance(call, MalformedCall) for call in calls)
        written = [
            {"id": f"call-{uuid.uuid4().hex[:8]}", "name": call.name, "arguments": json.dumps(call.arguments)}
            for call in calls
            if not isinstance(call, MalformedCall)
        ]
        said = {"content": action, "tool_calls": written}
        news = self._ask("answer", episode=self._playing[1], said=said)
        metrics = {"malformed_tool_calls": float(malformed)} if self._has_tools else {}
        if "ended" not in news:
            self._seen.append({"role": "assistant", "content": action})
            return self._news(news), 0.0, False, False, {"metrics": metrics}
        self._playing = None
        with _readable(self._environment):
            info = {"metrics": metrics | _numbers(news["metrics"]), "stop": str(news["stop"])[:_MOST_STOP]}
            reward, truncated = _reward(news["reward"]), bool(news["truncated"])
            return _messages(news["messages"]), reward, not truncated, truncated, info

    def end_episode(self) -> None:
        """End the episode: the player left it."""
        playing, self._playing = self._playing, None
        if playing is not None:
            with suppress(Exception):
                playing[0].ask("abandon", episode=playing[1], timeout_seconds=_QUESTION_SECONDS)

    def close(self) -> None:
        """End the episode. The process stays for other environments, and ends with this program."""
        self.end_episode()

    def _process(self) -> VerifiersProcess:
        return process_for(self._environment, self._arguments)

    def _ask(self, do: str, **arguments: Any) -> Answer:
        assert self._playing is not None
        try:
            return self._playing[0].ask(do, timeout_seconds=self._seconds, **arguments)
        except Exception:
            self.end_episode()
            raise

    def _news(self, asked: Answer) -> list[Message]:
        """Return the new messages in the environment's request."""
        try:
            with _readable(self._environment):
                self._has_tools = bool(asked["tools"])
                conversation = _messages(asked["messages"])
        except EnvironmentInfrastructureError:
            self.end_episode()
            raise
        count = len(self._seen)
        if [_gist(one) for one in conversation[:count]] != [_gist(one) for one in self._seen]:
            self.end_episode()
            raise InvalidEnvironmentError(
                f"{self._environment} rewrites what the policy has already read",
                hint="sampled tokens cannot be undone; choose an environment that only appends",
                field="environment",
            )
        self._seen = conversation
        return conversation[count:]


@contextmanager
def _readable(environment: str) -> Iterator[None]:
    """Reject an answer that lacks a part, or has one of another type."""
    try:
        yield
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise EnvironmentInfrastructureError(
            f"{environment} sent an answer that cannot be read: {quoted(error)}",
            hint="its messages, tools and metrics must be as verifiers defines them",
        ) from None


def _gist(message: Message) -> tuple[str, str]:
    return message["role"], str(message["content"])


def _messages(given: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Convert messages from verifiers.

    Raises:
        InvalidEnvironmentError: A message contains something other than text.
    """
    messages = []
    for one in given:
        role = one.get("role")
        message = {"role": role if role in ROLES else "user", "content": _words(one.get("content"))}
        if isinstance(one.get("tool_call_id"), str):
            message["tool_call_id"] = one["tool_call_id"]
        messages.append(cast("Message", message))
    return messages


def _words(content: object) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[Any] = content if isinstance(content, list) else [content]
    if not all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts):
        raise InvalidEnvironmentError(
            "the environment shows something other than text",
            hint="only text is bridged",
            field="environment",
        )
    return "\n".join(str(part["text"]) for part in parts)


def _refuse(environment: str, about: Answer, split: str) -> None:
    if missing := {"refused", "has_split", "system_prompt", "tools"} - about.keys():
        raise InvalidEnvironmentError(
            f"the description of {environment} lacks {', '.join(sorted(missing))}",
            hint=f"check that {PYTHON_VARIABLE} names a Python",
            field="environment",
        )
    if about["refused"]:
        raise InvalidEnvironmentError(
            f"{environment} cannot be bridged: {quoted(about['refused'])}",
            hint="each episode needs a single policy and its own reward; choose another environment",
            field="environment",
        )
    if not about["has_split"]:
        raise InvalidRequestError(
            f"{environment} has no {split} dataset",
            hint="its tasks depend on its arguments; pass different arguments for evaluation",
            field="split",
        )


def _offered(tools: Sequence[Mapping[str, Any]], syntax: Syntax) -> str:
    if not tools:
        return ""

    schemas = [
        {
            "type": "function",
            "function": {name: tool.get(name) for name in ("name", "description", "parameters")},
        }
        for tool in tools
    ]
    return describe_schemas(schemas, syntax)


def _reward(value: object) -> float:
    reward = finite_json_number(value)
    if reward is None:
        raise InvalidRewardError(f"the rubric's reward is {quoted(value)}, not a finite number")
    return reward


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    numbers = {name: finite_json_number(value) for name, value in metrics.items()}
    return {name: number for name, number in numbers.items() if number is not None}
