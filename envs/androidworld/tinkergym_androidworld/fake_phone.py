"""The fake phone's tasks, in AndroidWorld's form, and their environment.

For trying a recipe and for tests. What is learned here says nothing about AndroidWorld.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from tinkergym_androidworld.environment import PhoneEnv, Split
from tinkergym_androidworld.fake_device import APPS, FakeAction, FakeDevice, as_text

_NAMES = ("Ada", "Bob", "Eve", "Kim", "Leo", "Mia")
_OPENING = ("open", "start", "show", "launch", "run", "visit", "find", "view")
_HELD_OUT = 4
"""One of so many parameter sets of a kind is the test split's."""


class FakeTask:
    """A task, like AndroidWorld's `TaskEval`."""

    complexity = 0.6
    start_on_home_screen = True
    template = ""

    def __init__(self, params: Mapping[str, Any]) -> None:
        """Store one of `parameters`."""
        self.params = dict(params)

    @classmethod
    def parameters(cls) -> list[dict[str, Any]]:
        """Return all parameter sets that there are."""
        raise NotImplementedError(f"{cls.__name__} needs a method parameters()")

    @property
    def goal(self) -> str:
        """The goal."""
        return self.template.format(**self.params)

    def initialize_task(self, env: FakeDevice) -> None:
        """Set the phone up."""

    def is_successful(self, env: FakeDevice) -> float:
        """Return 1 if it is done."""
        raise NotImplementedError(f"{type(self).__name__} needs a method is_successful(env)")

    def tear_down(self, env: FakeDevice) -> None:
        """Undo everything."""
        env.switches.update({"Wi-Fi": True, "Bluetooth": False})
        env.contacts.clear()

    def steps(self) -> list[Callable[[FakeDevice], FakeAction]]:
        """Return the shortest solution, each action given the phone's current state."""
        raise NotImplementedError(f"{type(self).__name__} needs a method steps()")


class FakeSetSwitch(FakeTask):
    """Turn Wi-Fi or Bluetooth on or off."""

    template = "On the fake phone, {verb} {switch} {on_or_off}."

    @classmethod
    def parameters(cls) -> list[dict[str, Any]]:
        """Return both switches with both states, in several words."""
        sets = product(["turn", "switch", "set", "put"], ["Wi-Fi", "Bluetooth"], ["on", "off"])
        return [{"verb": verb, "switch": switch, "on_or_off": state} for verb, switch, state in sets]

    def initialize_task(self, env: FakeDevice) -> None:
        """Set it to the opposite."""
        env.switches[self.params["switch"]] = self.params["on_or_off"] == "off"

    def is_successful(self, env: FakeDevice) -> float:
        """Check the switch."""
        return float(env.switches[self.params["switch"]] == (self.params["on_or_off"] == "on"))

    def steps(self) -> list[Callable[[FakeDevice], FakeAction]]:
        """Open the settings and click."""
        return [click("Settings"), click(self.params["switch"])]


class FakeOpenApp(FakeTask):
    """Open an app."""

    template = "On the fake phone, {verb} {app}."

    @classmethod
    def parameters(cls) -> list[dict[str, Any]]:
        """Return each app with each word for opening it, so that no app is left to the test split alone."""
        return [{"app": app, "verb": verb} for app, verb in product(APPS, _OPENING)]

    def is_successful(self, env: FakeDevice) -> float:
        """Check the open app."""
        return float(env.foreground_activity_name == f"fake/.{self.params['app']}")

    def steps(self) -> list[Callable[[FakeDevice], FakeAction]]:
        """Click."""
        return [click(self.params["app"])]


class FakeReadBattery(FakeTask):
    """Answer a question."""

    template = "On the fake phone, how full is the battery, in percent?"

    @classmethod
    def parameters(cls) -> list[dict[str, Any]]:
        """Return every charge."""
        return [{"battery": charge} for charge in range(1, 100)]

    def initialize_task(self, env: FakeDevice) -> None:
        """Set the charge."""
        env.battery = self.params["battery"]

    def is_successful(self, env: FakeDevice) -> float:
        """Check the answer."""
        return float(env.interaction_cache.strip().rstrip("% ") == str(self.params["battery"]))

    def steps(self) -> list[Callable[[FakeDevice], FakeAction]]:
        """Open the app and report what it shows."""
        said = str(self.params["battery"])
        return [click("Battery"), lambda device: FakeAction(action_type="answer", text=said)]


class FakeAddContact(FakeTask):
    """Fill in a form."""

    complexity = 1.0
    template = "On the fake phone, add a contact: {name}, {number}."

    @classmethod
    def parameters(cls) -> list[dict[str, Any]]:
        """Return each name with each number of three digits."""
        return [{"name": name, "number": str(number)} for name, number in product(_NAMES, range(100, 1000))]

    def is_successful(self, env: FakeDevice) -> float:
        """Check for the contact."""
        return float(env.contacts.get(self.params["name"]) == self.params["number"])

    def steps(self) -> list[Callable[[FakeDevice], FakeAction]]:
        """Open the form, fill it in and save."""
        filled = [write("Name", self.params["name"]), write("Phone", self.params["number"])]
        return [click("Contacts"), click("New contact"), *filled, click("Save")]


TASKS: dict[str, type[FakeTask]] = {
    kind.__name__: kind for kind in (FakeAddContact, FakeOpenApp, FakeReadBattery, FakeSetSwitch)
}


@cache
def parameters_of(kind: str, split: Split) -> Sequence[dict[str, Any]]:
    """Return a kind's parameter sets in a split. None is in both, however few there are."""
    every = TASKS[kind].parameters()
    random.Random(kind).shuffle(every)
    held_out = max(1, len(every) // _HELD_OUT)
    return every[:held_out] if split == "test" else every[held_out:]


def click(text: str) -> Callable[[FakeDevice], FakeAction]:
    """Return a click on the element with a text."""
    return lambda device: FakeAction(action_type="click", index=_place(device, text))


def write(hint: str, text: str) -> Callable[[FakeDevice], FakeAction]:
    """Return the action that writes into a field."""
    return lambda device: FakeAction(action_type="input_text", text=text, index=_place(device, hint))


def _place(device: FakeDevice, text: str) -> int:
    shown = device.get_state().ui_elements
    return next(i for i, element in enumerate(shown) if text in (element.text, element.hint_text))


@dataclass(slots=True)
class FakePhone:
    """The phone and its tasks."""

    name: str = "the fake phone"
    split: Split = "train"
    device: FakeDevice | None = None

    def task_names(self) -> Sequence[str]:
        """Return the kinds of task."""
        return list(TASKS)

    def task(self, name: str, seed: int) -> FakeTask:
        """Return a task."""
        return TASKS[name](random.Random(seed).choice(parameters_of(name, self.split)))

    def action(self, fields: Mapping[str, Any]) -> FakeAction:
        """Return an action."""
        return FakeAction(**fields)

    def take(self) -> FakeDevice:
        """Return the phone."""
        self.device = self.device or FakeDevice()
        return self.device

    def give_back(self, *, broken: bool = False) -> None:
        """Keep it, unless it is broken."""
        if broken:
            self.device = None

    def close(self) -> None:
        """Do nothing."""


class FakePhoneEnv(PhoneEnv):
    """Operate a fake phone: AndroidWorld's interface, and four small tasks that are not AndroidWorld's."""

    def __init__(
        self,
        *,
        split: Split = "train",
        combinations: int = 16,
        image_size: tuple[int, int] = (160, 96),
        **settings: Any,
    ):
        """Choose the tasks and what is shown; see `PhoneEnv`.

        Args:
            split: `train` or `test`, which share no parameter set.
            combinations: Number of parameter sets per kind.
            image_size: Height and width of screenshots.
            settings: Arguments of `PhoneEnv`.
        """
        phone = FakePhone(split=split)
        super().__init__(phone, split=split, combinations=combinations, image_size=image_size, **settings)
        self._way: list[Callable[[FakeDevice], FakeAction]] = []
        self._done: list[str] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        begun = super().reset(seed=seed, options=options)
        assert isinstance(self._task, FakeTask)
        self._way = self._task.steps()
        return begun

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Do an action, and check whether it was the next one of the shortest solution."""
        on_the_way = bool(self._way) and action == self.gold_action()
        result = super().step(action)
        if on_the_way:
            self._way = self._way[1:]
        return result

    def gold_action(self) -> str | None:
        """Return the next action of the shortest solution; None once the policy has left it."""
        if not isinstance(self._device, FakeDevice):
            return None
        if not self._way:
            return as_text(FakeAction(action_type="status", goal_status="complete"))
        try:
            return as_text(self._way[0](self._device))
        except StopIteration:
            return None
