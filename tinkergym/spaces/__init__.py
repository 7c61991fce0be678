"""Gymnasium spaces for language."""

from tinkergym.spaces.text import Text

__all__ = ["Text"]
