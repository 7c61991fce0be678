"""A task on a phone, as a Gymnasium environment."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, get_args

import gymnasium as gym

from tinkergym.errors import EnvironmentInfrastructureError, EpisodeProtocolError, InvalidRequestError
from tinkergym.spaces import Image, Text
from tinkergym.tasks import SequenceTasks
from tinkergym_androidworld.actions import PROMPT, MalformedActionError, read_action
from tinkergym_androidworld.phone import Device, Phone, PhoneTask, Pixels, State
from tinkergym_androidworld.screen import in_words, is_visible, scaled

Split = Literal["train", "test"]
Value = TypeVar("Value")

SUITE_SEEDS: dict[str, int] = {"train": 31, "test": 30}
"""Seeds of the suites for each split's tasks. AndroidWorld's own evaluation uses 30."""
_STEPS_PER_COMPLEXITY = 10
"""As in AndroidWorld's own evaluation."""


class PhoneEnv(gym.Env[Any, str]):
    """Tasks on a device. Subclasses choose the device.

    A task is a kind of task with a seed for its parameters, created like in AndroidWorld's suites. Success is
    checked once, when the policy says that it is done. An episode that uses up its steps is truncated and
    earns 0. If the device fails, the episode is lost.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - Gymnasium declares it so
        "render_modes": ["rgb_array"],
        "render_fps": 1,
        "turns": "multi",
        "data": "free",
    }

    def __init__(
        self,
        phone: Phone,
        *,
        tasks: Sequence[str] | None = None,
        split: Split = "train",
        combinations: int = 1,
        max_steps: int | None = None,
        screenshot: bool = False,
        image_size: tuple[int, int] = (512, 256),
        boxes: bool = False,
        instructions: bool = True,
        render_mode: str | None = None,
    ) -> None:
        """Choose the tasks and what is shown.

        Args:
            phone: The device.
            tasks: Kinds of task; None means all.
            split: The tasks' parameters: `train` or `test`.
            combinations: Number of parameter sets per kind.
            max_steps: Step limit per episode; None means ten for each unit of the task's complexity.
            screenshot: Also show the screen as an image.
            image_size: Height and width of the scaled image.
            boxes: Show the position of each element.
            instructions: Explain the actions in a system prompt.
            render_mode: `rgb_array` returns the screen.

        Raises:
            InvalidRequestError: The task or split does not exist, or a number is not positive.
        """
        self.render_mode = render_mode
        self.metadata = {**self.metadata, **({"system_prompt": PROMPT} if instructions else {})}
        height, width = _size(image_size)
        words = Text()
        self.observation_space = (
            gym.spaces.Dict({"image": Image(height, width), "text": words}) if screenshot else words
        )
        self.action_space = Text()
        _positive("combinations", combinations)
        if max_steps is not None:
            _positive("max_steps", max_steps)
        names = _chosen(tasks, phone.task_names())
        self.tasks = SequenceTasks(
            {part: _suite(names, SUITE_SEEDS[part], combinations) for part in get_args(Split)}, split=split
        )
        self.metadata = {**self.metadata, "data": "dependent", "splits": list(get_args(Split))}
        self._phone, self._max_steps = phone, max_steps
        self._image_size = (height, width) if screenshot else None
        self._boxes = boxes
        self._device: Device | None = None
        self._task: PhoneTask | None = None
        self._state: State | None = None
        self._pixels: Pixels | None = None
        self._kind, self._steps, self._budget = "", 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reserve the device, set up task `options["task_index"]` or one drawn by the seed, and observe.

        Raises:
            EnvironmentBusyError: Another environment is using the device and does not release it.
            EnvironmentInfrastructureError: The device cannot be reached, or failed.
        """
        super().reset(seed=seed)
        _, row = self.tasks.choose(self.np_random, options)
        self._finish()
        self._device = self._phone.take()
        self._kind, self._steps = str(row["task"]), 0
        # Created on the device's side: AndroidWorld's tasks use its clock for their parameters.
        task = self._on_device(lambda: self._phone.task(self._kind, int(row["seed"])))
        # In AndroidWorld's order: setting a task up may leave an app open.
        self._on_device(lambda: task.initialize_task(self._held))
        self._on_device(lambda: self._held.reset(go_home=task.start_on_home_screen))
        self._task = task
        self._budget = self._max_steps or max(1, int(_STEPS_PER_COMPLEXITY * task.complexity))
        self._observe()
        return self._shown(f"Goal: {task.goal}\n"), {"task": self._kind, "device": self._phone.name}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Do an action. If it is invalid, the policy is told what is wrong, and it costs a step.

        Raises:
            EpisodeProtocolError: No episode is running.
            EnvironmentInfrastructureError: The device failed, and the episode is lost.
        """
        task, state = self._task, self._state
        if task is None or state is None:
            raise EpisodeProtocolError("no episode is running", hint="call reset before step")
        self._steps += 1
        try:
            fields = read_action(action, state, self._screen_size())
        except MalformedActionError as malformed:
            return self._returned(str(malformed) + "\n", 0.0, done=False, malformed=True)
        self._on_device(lambda: self._held.execute_action(self._phone.action(fields)))
        if fields["action_type"] == "status":
            earned = float(self._on_device(lambda: task.is_successful(self._held)))
            return self._returned("", earned, done=True)
        self._observe()
        return self._returned("", 0.0, done=False)

    def render(self) -> Pixels | None:
        """Return the last seen screen."""
        return None if self.render_mode != "rgb_array" or self._pixels is None else self._pixels.copy()

    def legal_actions(self) -> list[str]:
        """Return a click on each clickable element, and the actions that are always possible."""
        if self._state is None:
            return []
        size = self._screen_size()
        clicks = [
            {"action_type": "click", "index": index}
            for index, element in enumerate(self._state.ui_elements)
            if element.is_clickable and is_visible(element, size)
        ]
        others = [{"action_type": "navigate_back"}, {"action_type": "navigate_home"}]
        done = [{"action_type": "status", "goal_status": "complete"}]
        return [json.dumps(action) for action in [*clicks, *others, *done]]

    def end_episode(self) -> None:
        """Clean up and release the device: the player ended the episode."""
        self._finish()

    def close(self) -> None:
        """Clean up and close the connection to the device."""
        try:
            self._finish()
        finally:
            self._phone.close()

    # --- inside ---

    @property
    def _held(self) -> Device:
        assert self._device is not None
        return self._device

    def _screen_size(self) -> tuple[int, int]:
        width, height = self._on_device(lambda: self._held.logical_screen_size)
        return width, height

    def _observe(self) -> None:
        state: State = self._on_device(lambda: self._held.get_state(wait_to_stabilize=True))
        self._state, self._pixels = state, state.pixels

    def _shown(self, before: str) -> Any:
        assert self._state is not None
        words = before + in_words(self._state, self._screen_size(), boxes=self._boxes)
        if self._image_size is None:
            return words
        return {"image": scaled(self._state.pixels, *self._image_size), "text": words}

    def _returned(
        self, before: str, reward: float, *, done: bool, malformed: bool = False
    ) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        truncated = not done and self._steps >= self._budget
        metrics = {"malformed_actions": float(malformed)}
        if done or truncated:
            metrics |= {"success": reward, f"success_{self._kind}": reward}
        observation = self._shown(before)
        if done or truncated:
            self._finish()
        return observation, reward, done, truncated, {"metrics": metrics, "task": self._kind}

    def _finish(self) -> None:
        """Clean up after the episode, if there is one, and release the device."""
        task, device = self._task, self._device
        if device is None:
            return
        if task is not None:
            self._on_device(lambda: task.tear_down(device))
        self._let_go(broken=False)

    def _let_go(self, *, broken: bool) -> None:
        held, self._device, self._task, self._state = self._device, None, None, None
        if held is not None:
            self._phone.give_back(broken=broken)

    def _on_device(self, call: Callable[[], Value]) -> Value:
        """Call the device or its task and return the result.

        Raises:
            EnvironmentInfrastructureError: It raised an error; the device was released as broken.
        """
        try:
            return call()
        except Exception as error:  # AndroidWorld and adb raise arbitrary errors
            self._let_go(broken=True)
            raise EnvironmentInfrastructureError(
                f"{self._phone.name} failed: {traceback.format_exc(limit=-3).strip()}",
                hint="the episode is lost; check whether the device still responds",
            ) from error


def _suite(names: Sequence[str], seed: int, combinations: int) -> list[dict[str, Any]]:
    return [
        {"task": name, "seed": instance_seed(seed, name, number)}
        for name in names
        for number in range(combinations)
    ]


def instance_seed(suite_seed: int, name: str, number: int) -> int:
    """Return the seed of a task's parameters, derived like in AndroidWorld from a suite's seed."""
    digest = hashlib.sha256(f"{suite_seed}_{name}_{number}".encode()).hexdigest()
    return int(digest, 16) % 2**32


def _chosen(tasks: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    if tasks is None:
        return sorted(known)
    names = [tasks] if isinstance(tasks, str) else list(tasks)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise InvalidRequestError(
            f"there is no task {unknown[0]!r}" if unknown else "no task is named",
            hint=f"choose from {', '.join(sorted(known))}",
            field="tasks",
        )
    return names


def _positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidRequestError(f"must be a positive whole number, not {value!r}", field=name)


def _size(given: Sequence[int]) -> tuple[int, int]:
    if len(given) != 2:
        raise InvalidRequestError("must be a height and a width", field="image_size")
    for side in given:
        _positive("image_size", side)
    return given[0], given[1]
