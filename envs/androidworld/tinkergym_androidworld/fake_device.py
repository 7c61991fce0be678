"""A fake phone: not Android, but a device with AndroidWorld's interface and a few screens.

Every screen says "fake", also in the image.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinkergym_androidworld.phone import Pixels

WIDTH, HEIGHT = 96, 160
_ROW = 16
_ROWS = HEIGHT // _ROW

APPS = ("Settings", "Contacts", "Battery")


@dataclass(frozen=True, slots=True)
class FakeBox:
    """A rectangle, like AndroidWorld's `BoundingBox`."""

    x_min: float
    x_max: float
    y_min: float
    y_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeElement:
    """An element, like AndroidWorld's `UIElement`."""

    text: str | None = None
    content_description: str | None = None
    class_name: str | None = "android.widget.TextView"
    hint_text: str | None = None
    bbox_pixels: FakeBox | None = None
    is_checked: bool | None = False
    is_checkable: bool | None = False
    is_clickable: bool | None = False
    is_editable: bool | None = False
    is_enabled: bool | None = True
    is_scrollable: bool | None = False
    is_selected: bool | None = False
    is_visible: bool | None = True


@dataclass(frozen=True, slots=True)
class FakeState:
    """What is shown, like AndroidWorld's `State`."""

    pixels: Pixels
    ui_elements: list[FakeElement]
    forest: None = None
    auxiliaries: None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeAction:
    """An action, like AndroidWorld's `JSONAction`."""

    action_type: str
    index: int | None = None
    x: int | None = None
    y: int | None = None
    text: str | None = None
    direction: str | None = None
    goal_status: str | None = None
    app_name: str | None = None
    clear_text: bool | None = None


@dataclass(slots=True)
class FakeDevice:
    """The phone, like AndroidWorld's `AsyncEnv`."""

    switches: dict[str, bool] = field(default_factory=lambda: {"Wi-Fi": True, "Bluetooth": False})
    contacts: dict[str, str] = field(default_factory=dict)
    """Phone numbers by name."""
    battery: int = 50
    interaction_cache: str = ""
    """The policy's answer."""
    _screen: str = "home"
    _form: dict[str, str] = field(default_factory=dict)

    def reset(self, go_home: bool = False) -> FakeState:
        """Clear the last episode's answer."""
        self.interaction_cache = ""
        if go_home:
            self._open("home")
        return self.get_state()

    def get_state(self, wait_to_stabilize: bool = False) -> FakeState:
        """Return what is shown; it never changes by itself."""
        del wait_to_stabilize
        elements = [element for element, _ in self._rows()]
        return FakeState(_drawn(elements), elements)

    def execute_action(self, action: FakeAction) -> None:
        """Execute an action."""
        kind = action.action_type
        if kind == "answer":
            self.interaction_cache = action.text or ""
        elif kind == "open_app" and action.app_name in APPS:
            self._open(action.app_name)
        elif kind == "navigate_home":
            self._open("home")
        elif kind == "navigate_back":
            self._open("Contacts" if self._screen == "New contact" else "home")
        elif kind in ("click", "input_text"):
            touched = self._touched(action)
            if touched is not None and kind == "click":
                touched()
            elif kind == "input_text":
                self._type(action)

    @property
    def foreground_activity_name(self) -> str:
        """The open app."""
        return f"fake/.{self._screen.replace(' ', '')}"

    @property
    def logical_screen_size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return WIDTH, HEIGHT

    def close(self) -> None:
        """Do nothing."""

    def _open(self, screen: str) -> None:
        self._screen, self._form = screen, {}

    def _rows(self) -> list[tuple[FakeElement, Callable[[], None] | None]]:
        """Return the elements from top to bottom, and the effect of a click on each."""
        rows: list[tuple[dict[str, Any], Callable[[], None] | None]] = [({"text": "fake phone"}, None)]
        if self._screen == "home":
            rows += [(_button(app), lambda app=app: self._open(app)) for app in APPS]  # type: ignore[misc]
        elif self._screen == "Settings":
            rows += [
                (_switch(name, on=on), lambda name=name: self._toggle(name))  # type: ignore[misc]
                for name, on in self.switches.items()
            ]
        elif self._screen == "Battery":
            rows.append(({"text": f"{self.battery} %"}, None))
        elif self._screen == "Contacts":
            rows += [({"text": f"{name} {number}"}, None) for name, number in self.contacts.items()]
            rows.append((_button("New contact"), lambda: self._open("New contact")))
        else:
            rows += [(_field(name, self._form.get(name)), None) for name in ("Name", "Phone")]
            rows.append((_button("Save"), self._save))
        return [
            (FakeElement(bbox_pixels=FakeBox(0, WIDTH, _ROW * row, _ROW * (row + 1)), **looks), does)
            for row, (looks, does) in enumerate(rows[:_ROWS])
        ]

    def _row_of(self, action: FakeAction) -> int | None:
        if action.index is not None:
            return action.index
        return None if action.y is None else action.y // _ROW

    def _touched(self, action: FakeAction) -> Callable[[], None] | None:
        row, rows = self._row_of(action), self._rows()
        return rows[row][1] if row is not None and row < len(rows) else None

    def _toggle(self, name: str) -> None:
        self.switches[name] = not self.switches[name]

    def _type(self, action: FakeAction) -> None:
        row, rows = self._row_of(action), self._rows()
        if row is not None and row < len(rows) and rows[row][0].is_editable:
            self._form[rows[row][0].hint_text or ""] = action.text or ""

    def _save(self) -> None:
        if self._form.get("Name"):
            self.contacts[self._form["Name"]] = self._form.get("Phone", "")
            self._open("Contacts")


def _button(text: str) -> dict[str, Any]:
    return {"text": text, "class_name": "android.widget.Button", "is_clickable": True}


def _switch(text: str, *, on: bool) -> dict[str, Any]:
    kind = {"class_name": "android.widget.Switch", "is_clickable": True, "is_checkable": True}
    return {"text": text, "is_checked": on, **kind}


def _field(hint: str, text: str | None) -> dict[str, Any]:
    return {"text": text, "hint_text": hint, "class_name": "android.widget.EditText", "is_editable": True}


_FAKE = (
    "#### .##. #..# ####",
    "#... #..# #.#. #...",
    "###. #### ##.. ###.",
    "#... #..# #.#. #...",
    "#... #..# #..# ####",
)
_INK = np.array([[pixel == "#" for pixel in line] for line in _FAKE])


def _drawn(elements: list[FakeElement]) -> Pixels:
    """Return the screen: a bar for each element, bright if it is on, and the word "fake" at the top."""
    pixels = np.full((HEIGHT, WIDTH, 3), 32, np.uint8)
    for row, element in enumerate(elements):
        top = _ROW * row
        shade = 220 if element.is_checked else 120 if element.is_clickable or element.is_editable else 64
        pixels[top + 1 : top + _ROW - 1, 2 : WIDTH - 2] = shade
        # Texts can be distinguished but not read: a stripe for each of the first letters.
        for place, letter in enumerate((element.text or element.hint_text or "")[:12]):
            pixels[top + 3 : top + _ROW - 3, 6 + 7 * place : 9 + 7 * place] = (ord(letter) * 5) % 256
    large = _INK.repeat(2, axis=0).repeat(2, axis=1)
    pixels[3 : 3 + large.shape[0], 4 : 4 + large.shape[1]][large] = 255
    return pixels


def as_text(action: FakeAction) -> str:
    """Write an action like a policy."""
    names = ("action_type", "index", "text", "direction", "goal_status", "app_name")
    given = {name: getattr(action, name) for name in names}
    return json.dumps({name: value for name, value in given.items() if value is not None})
