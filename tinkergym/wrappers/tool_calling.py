"""ToolCalling: the policy may call tools before it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from tinkergym.errors import EpisodeProtocolError, InvalidEnvironmentError, InvalidRequestError
from tinkergym.messages import Message, observation_messages
from tinkergym.spaces import Chat
from tinkergym.tool_calls.syntax import Syntax, render_result
from tinkergym.tools.collection import ToolSource, by_name, methods_of, named_tools, recorded
from tinkergym.tools.definition import Tool
from tinkergym.tools.prompt import describe_tools
from tinkergym.tools.runner import ToolRunner, no_calls
from tinkergym.trajectory.content_parts import ImagePart

Step = tuple[Any, Any, bool, bool, dict[str, Any]]
_MOST_SECONDS = 86_400
"""A day. Python's waits cannot take arbitrarily many seconds."""


class ToolCalling(gym.Wrapper[Any, str, Any, str], RecordConstructorArgs):
    """Runs the tool calls of an action, and returns their results as the next observation.

    An action without a call is the answer and goes to the inner environment unchanged. Calls of one action
    run in order, or with `parallel_calls` those that are independent at the same time. If a call fails (it
    cannot be parsed, there is no such tool, its arguments do not match, the tool raises or takes too long),
    the observation tells the policy, and the failure is counted. Only if a tool's infrastructure fails
    (`EnvironmentInfrastructureError`) does the episode end with an error.

    The tools are described in `metadata["system_prompt"]`, after the environment's own prompt. In an
    environment whose observations are chats, results are messages with the role `tool`; in others, text.

    With the syntax `native`, the model's own chat template describes the tools and defines the format of
    calls and results, as in the model's training; observations are then chats, the first of which contains
    the tools.

    Each step counts in `info["metrics"]`: `tool_calls` (that ran), `tool_errors` (of these, that failed),
    `malformed_tool_calls` (that could not run) and `refused_tool_calls` (over `max_calls`).

    Example:
        >>> env = ToolCalling(tg.make("math/Arithmetic-v0"), tools=[calculator], max_calls=4)
        >>> env.reset(seed=0)
        >>> env.step('<tool_call>{"name": "calculator", "arguments": {"expression": "1+1"}}</tool_call>')
    """

    def __init__(
        self,
        env: gym.Env[Any, str],
        tools: Sequence[ToolSource] = (),
        syntax: Syntax = "hermes",
        *,
        max_calls: int | None = None,
        timeout_seconds: float | None = None,
        max_result_characters: int = 10_000,
        parallel_calls: int = 1,
    ) -> None:
        """Wrap an environment. Its methods that are marked with `@tool` are offered automatically.

        Args:
            env: An environment with text actions and text or chat observations.
            tools: More tools; see `tinkergym.tools.collection.ToolSource` for the possible forms.
            syntax: The syntax of calls: `hermes`, `xml`, `json`, or `native` for models whose chat template
                supports them.
            max_calls: The most calls in an episode; None leaves it to the limits of the episode.
            timeout_seconds: Time limit of a function's call, unless the tool has its own. Methods of the
                environment have none: they run in the environment's thread.
            max_result_characters: Longer results are cut to their beginning and end.
            parallel_calls: How many consecutive calls of one action run at the same time, in threads, if
                their tools are independent: functions are, methods of the environment and other tools are
                not unless they set `is_independent`. Results keep the order of the calls.

        Raises:
            InvalidToolError: There are no tools, two have the same name, or one is invalid.
            InvalidRequestError: A setting is out of range.
        """
        RecordConstructorArgs.__init__(
            self,
            _disable_deepcopy=True,  # A tool may hold a process or a connection.
            tools=recorded(tools),
            syntax=syntax,
            max_calls=max_calls,
            timeout_seconds=timeout_seconds,
            max_result_characters=max_result_characters,
            **({} if parallel_calls == 1 else {"parallel_calls": parallel_calls}),
        )
        super().__init__(env)
        if syntax not in get_args(Syntax):
            raise InvalidRequestError(
                f"{syntax!r} is not one of {', '.join(get_args(Syntax))}", field="syntax"
            )
        _check_limits(max_calls, timeout_seconds, max_result_characters, parallel_calls)
        given, self._made = named_tools(tools)
        self.tools: dict[str, Tool] = by_name([*methods_of(env), *given])
        """By name."""
        self._syntax = syntax
        self._runner = ToolRunner(
            self.tools,
            syntax,
            max_calls=max_calls,
            timeout_seconds=timeout_seconds,
            max_result_characters=max_result_characters,
            parallel_calls=parallel_calls,
        )
        self.metadata = {**env.metadata, "turns": "multi"}
        if syntax == "native":
            self.observation_space = _with_chats(env.observation_space)
        else:
            offer = describe_tools(list(self.tools.values()), syntax, max_calls=max_calls)
            own = env.metadata.get("system_prompt")
            self.metadata["system_prompt"] = f"{own}\n\n{offer}" if own else offer
        self._playing = False
        self._last: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode with all its calls left.

        Raises:
            InvalidEnvironmentError: The observation cannot contain text, and so no result of a tool.
        """
        observation, info = self.env.reset(seed=seed, options=options)
        if not isinstance(observation, str | list | Mapping):
            raise InvalidEnvironmentError(
                f"tools answer in text, but the observation is {type(observation).__name__}",
                hint="convert it to text first, with tinkergym.wrappers.Verbalize",
                field="environment",
            )
        self._runner.begin()
        if self._syntax == "native":
            offer: Message = {"role": "system", "content": ""}
            offer["tools"] = [tool.schema() for tool in self.tools.values()]
            observation = _with_messages(observation, [offer, *observation_messages(observation)])
        self._playing, self._last = True, observation
        return observation, info

    def step(self, action: str) -> Step:
        """Run the calls of the action, or pass it on as the answer.

        Raises:
            EpisodeProtocolError: No episode is running.
            EnvironmentInfrastructureError: A tool's infrastructure failed.
        """
        if not self._playing:
            raise EpisodeProtocolError("no episode is running", hint="call reset before step")
        ran = self._runner.run(action)
        if ran is not None:
            return self._shown(ran.results), 0.0, False, False, {"metrics": ran.counts}
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._playing = not (terminated or truncated)
        if self._syntax == "native" and isinstance(observation, str | list | Mapping):
            observation = _with_messages(observation, observation_messages(observation))
        self._last = observation
        metrics = {**no_calls(), **(info.get("metrics") or {})}
        return observation, reward, terminated, truncated, {**info, "metrics": metrics}

    def close(self) -> None:
        """Close the environment, and the tools that were created for it by name."""
        for tool in self._made:
            tool.close()
        super().close()

    # --- what the policy sees ---

    def _shown(self, results: list[tuple[str, str]]) -> Any:
        if isinstance(self._last, list):
            return [self._message(name, text) for name, text in results]
        text = "\n".join(render_result(name, text, self._syntax) for name, text in results)
        if isinstance(self._last, Mapping):
            if "messages" in self._last:
                return {**self._last, "messages": [self._message(name, text) for name, text in results]}
            # The other keys belong to the space and are still valid: no call changed them. Images
            # were shown already and are left out if the space allows it.
            return {**self._last, **self._no_images(), "text": text}
        return text

    def _no_images(self) -> dict[str, tuple[()]]:
        space = self.observation_space
        images = space.spaces.get("images") if isinstance(space, gym.spaces.Dict) else None
        return {"images": ()} if isinstance(images, gym.spaces.Sequence) and not images.stack else {}

    def _message(self, name: str, text: str) -> Message:
        space = self.observation_space
        space = space.spaces["messages"] if isinstance(space, gym.spaces.Dict) else space
        if isinstance(space, Chat) and "tool" not in space.roles:
            return {"role": "user", "content": render_result(name, text, self._syntax)}
        message: Message = {"role": "tool", "content": text}
        if name:
            message["name"] = name
        return message


def _check_limits(
    max_calls: Any, timeout_seconds: Any, max_result_characters: Any, parallel_calls: Any
) -> None:
    counts = [("max_result_characters", max_result_characters, 100), ("parallel_calls", parallel_calls, 1)]
    counts += [("max_calls", max_calls, 1)] if max_calls is not None else []
    for field, value, least in counts:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidRequestError(f"must be an integer of at least {least}, not {value!r}", field=field)
    if timeout_seconds is None:
        return
    is_number = isinstance(timeout_seconds, int | float) and not isinstance(timeout_seconds, bool)
    if not is_number or not 0 <= timeout_seconds <= _MOST_SECONDS:
        raise InvalidRequestError(
            f"must be a number from 0 to {_MOST_SECONDS}, not {timeout_seconds!r}", field="timeout_seconds"
        )


def _with_chats(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return the space of `_with_messages` of a space's observations."""
    if isinstance(space, gym.spaces.Dict) and "messages" in space.spaces:
        return gym.spaces.Dict({**_without_images(space.spaces), "messages": Chat()})
    return Chat()


def _with_messages(observation: Any, messages: list[Message]) -> Any:
    """Return an observation that shows these messages, as a mapping where it shows some already."""
    plain = [_plain(message) for message in messages]
    if isinstance(observation, Mapping) and "messages" in observation:
        silent = {"text": ""} if "text" in observation else {}
        return {**_without_images(observation), **silent, "messages": plain}
    return plain


def _without_images(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in {"image", "images"}}


def _plain(message: Message) -> Message:
    """Return a message whose parts are dicts and bytes, which also reach another process or machine."""
    if isinstance(message["content"], str):
        return message
    content = [
        {"type": "image", "image": part.file.data}
        if isinstance(part, ImagePart) and part.file is not None
        else dict(part)
        for part in message["content"]
    ]
    return {**message, "content": content}  # type: ignore[typeddict-item]
