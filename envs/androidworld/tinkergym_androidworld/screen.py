"""What a device shows, as text and as an image of a fixed size."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinkergym_androidworld.phone import Pixels, State

_MOST_TEXT = 200
"""Character limit for one element's text."""


def in_words(state: State, screen_size: tuple[int, int], *, boxes: bool = False) -> str:
    """Return the visible elements, one per line: number, kind, text and state.

    Args:
        state: What the device shows.
        screen_size: Width and height in pixels.
        boxes: Show each position as `(x_min, y_min, x_max, y_max)`.
    """
    lines = [
        _line(index, element, boxes=boxes)
        for index, element in enumerate(state.ui_elements)
        if is_visible(element, screen_size)
    ]
    return "\n".join(lines) or "The screen shows no elements."


def is_visible(element: Any, screen_size: tuple[int, int]) -> bool:
    """Return whether any of an element lies on the screen; the same rule as AndroidWorld's own agents use."""
    if not element.is_visible:
        return False
    box, (width, height) = element.bbox_pixels, screen_size
    return box is None or (
        box.x_min < box.x_max
        and box.y_min < box.y_max
        and box.x_min < width
        and box.x_max > 0
        and box.y_min < height
        and box.y_max > 0
    )


def _line(index: int, element: Any, *, boxes: bool) -> str:
    kind = (element.class_name or "View").rpartition(".")[2]
    said = element.text or element.content_description or element.hint_text or ""
    conditions = [
        *(["on" if element.is_checked else "off"] if element.is_checkable else []),
        *(["editable"] if element.is_editable else []),
        *(["scrollable"] if element.is_scrollable else []),
        *(["selected"] if element.is_selected else []),
        *(["disabled"] if element.is_enabled is False else []),
    ]
    words = [str(index), kind]
    if said:
        words.append('"' + " ".join(said.split())[:_MOST_TEXT] + '"')
    if conditions:
        words.append(f"({', '.join(conditions)})")
    if boxes and (box := element.bbox_pixels) is not None:
        words.append(f"({box.x_min:.0f}, {box.y_min:.0f}, {box.x_max:.0f}, {box.y_max:.0f})")
    return " ".join(words)


def scaled(pixels: Pixels, height: int, width: int) -> Pixels:
    """Return the screen in a given size; proportions are not kept.

    Args:
        pixels: [any height, any width, 3 or 4].
        height: In pixels.
        width: In pixels.
    """
    pixels = np.array(pixels[:, :, :3], dtype=np.uint8)
    if pixels.shape[:2] == (height, width):
        return pixels
    from PIL import Image  # the pack only needs it for screenshots

    resized = Image.fromarray(pixels).resize((width, height), Image.Resampling.BOX)
    return np.asarray(resized, dtype=np.uint8).copy()
