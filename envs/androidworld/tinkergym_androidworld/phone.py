"""An environment's interface to a device and its tasks: the part of AndroidWorld's interface used here.

Names and meanings are AndroidWorld's (`AsyncEnv`, `State`, `UIElement`, `TaskEval`, `JSONAction`), so its
objects fit without an adapter, like those of the fake phone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


class Box(Protocol):
    """A rectangle in pixels."""

    x_min: float
    x_max: float
    y_min: float
    y_max: float


class Element(Protocol):
    """A user interface element, like AndroidWorld's `UIElement`."""

    text: str | None
    content_description: str | None
    class_name: str | None
    hint_text: str | None
    bbox_pixels: Any
    """A `Box`, or None."""
    is_checked: bool | None
    is_checkable: bool | None
    is_clickable: bool | None
    is_editable: bool | None
    is_enabled: bool | None
    is_scrollable: bool | None
    is_selected: bool | None
    is_visible: bool | None


class State(Protocol):
    """What a device shows."""

    @property
    def pixels(self) -> Pixels:
        """The screen, [height, width, 3]."""
        ...

    @property
    def ui_elements(self) -> Sequence[Any]:
        """`Element`s; an action names one by its index in this list."""
        ...


class Device(Protocol):
    """A phone, like AndroidWorld's `AsyncEnv`."""

    def reset(self, go_home: bool = False) -> Any:
        """Clear the last episode; with `go_home` show the home screen."""
        ...

    def get_state(self, wait_to_stabilize: bool = False) -> Any:
        """Return the `State`."""
        ...

    def execute_action(self, action: Any) -> None:
        """Execute an action."""
        ...

    @property
    def logical_screen_size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        ...

    def close(self) -> None:
        """Disconnect from the device."""
        ...


class PhoneTask(Protocol):
    """A task, like AndroidWorld's `TaskEval`."""

    @property
    def goal(self) -> str:
        """The goal in words."""
        ...

    @property
    def complexity(self) -> float:
        """A tenth of its step limit."""
        ...

    @property
    def start_on_home_screen(self) -> bool:
        """Whether the episode starts on the home screen, or where the setup ended."""
        ...

    def initialize_task(self, env: Any) -> None:
        """Set the device up."""
        ...

    def is_successful(self, env: Any) -> float:
        """Return the degree of success, from 0 to 1."""
        ...

    def tear_down(self, env: Any) -> None:
        """Clean the device up."""
        ...


class Phone(Protocol):
    """An available device and its tasks."""

    name: str
    """Name for messages."""

    def task_names(self) -> Sequence[str]:
        """Return all kinds of task."""
        ...

    def task(self, name: str, seed: int) -> PhoneTask:
        """Return a task of a kind, with parameters drawn by the seed."""
        ...

    def action(self, fields: Mapping[str, Any]) -> Any:
        """Return an action for `Device.execute_action`."""
        ...

    def take(self) -> Device:
        """Wait until the device is free and reserve it for an episode.

        Raises:
            EnvironmentBusyError: It did not become free.
            EnvironmentInfrastructureError: It cannot be reached.
        """
        ...

    def give_back(self, *, broken: bool = False) -> None:
        """Release it; a broken one is reconnected."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...
