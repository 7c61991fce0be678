"""Imports from tinker-cookbook, or an error that says how to install it."""

from __future__ import annotations

from tinkergym.errors import MissingExtraError

try:
    import chz
    import tinker
    from tinker_cookbook.rl import types
    from tinker_cookbook.tokenizer_utils import get_tokenizer
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"this bridge needs tinker-cookbook: {error}",
        hint="in a checkout: pip install '.[tinker]', then pip install --no-deps tinker-cookbook==0.6.1",
    ) from error

__all__ = ["chz", "get_tokenizer", "tinker", "types"]
