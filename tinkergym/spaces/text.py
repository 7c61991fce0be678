"""Text: the space of Unicode strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NoReturn

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import utils as _flattening
from gymnasium.vector.utils import shared_memory as _shared_memory
from gymnasium.vector.utils import space_utils as _batching
from numpy.typing import NDArray

from tinkergym.messages import is_unicode
from tinkergym.spaces.unicode import UnicodeCharacters, all_characters, from_indices, to_indices
from tinkergym.user_code.quoting import quoted

_SAMPLED = "".join(map(chr, range(32, 127))) + "\näßéñ¿ΩЖ中文日本語한국어…€😀"
_SAMPLED_LENGTH = 32


class Text(spaces.Text):
    """Any Unicode text between two lengths, lone surrogates excluded.

    Gymnasium's own `Text` lists its characters, by default only ASCII letters and digits without spaces.
    Samples are short, whatever `max_length` is, because they serve to test environments.

    Example:
        >>> "Grüße, 世界" in Text()
        True
    """

    def __init__(
        self,
        max_length: int = 1_000_000,
        *,
        min_length: int = 0,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        """Create the space.

        Args:
            max_length: The most characters.
            min_length: The fewest characters.
            seed: The seed for `sample`.

        Raises:
            ValueError: `0 <= min_length <= max_length` does not hold.
        """
        if not 0 <= min_length <= max_length:
            raise ValueError(f"0 <= min_length <= max_length must hold; got {min_length=}, {max_length=}")
        self.min_length = int(min_length)
        self.max_length = int(max_length)
        # Skips the parent's initializer, which would make tables of all 1.1 million characters.
        spaces.Space.__init__(self, dtype=str, seed=seed)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is such a text."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length and is_unicode(x)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a short random text.

        Args:
            mask: A list of legal texts, one of which is returned, all with equal probability; or Gymnasium's
                `(length, None)`, which fixes the length.
            probability: A mapping of legal texts to weights; or `(length, None)`.

        Raises:
            ValueError: Both are given; a listed text or the length is not in the space; or single characters
                are masked or weighted, which is not supported.
        """
        if mask is not None and probability is not None:
            raise ValueError("pass either mask or probability")
        given = mask if probability is None else probability
        if isinstance(probability, Mapping):
            return str(choose(self, list(probability), list(probability.values())))
        if isinstance(mask, list) or (isinstance(mask, tuple) and all(isinstance(x, str) for x in mask)):
            return str(choose(self, mask))
        if given is None:
            return self.sampled_with(self.np_random)
        return self.sampled_with(self.np_random, length=self._fixed_length(given))

    def sampled_with(self, generator: np.random.Generator, *, length: int | None = None) -> str:
        """Return a short random text from another generator, with a given length if there is one."""
        if length is None:
            most = max(self.min_length, min(self.max_length, _SAMPLED_LENGTH))
            length = int(generator.integers(self.min_length, most + 1))
        return "".join(_SAMPLED[i] for i in generator.integers(len(_SAMPLED), size=length))

    def _fixed_length(self, given: Any) -> int | None:
        if not isinstance(given, tuple) or len(given) != 2:
            raise ValueError(
                "tinkergym.spaces.Text samples from mask=[text, ...], probability={text: weight, ...} "
                f"or a tuple (length, None), not {quoted(given)!a}"
            )
        length, characters = given
        if characters is not None:
            raise ValueError(
                "tinkergym.spaces.Text cannot mask characters; use gymnasium.spaces.Text for that"
            )
        if length is not None and not self.min_length <= int(length) <= self.max_length:
            raise ValueError(f"the length {length} is not in {self}")
        return None if length is None else int(length)

    def __repr__(self) -> str:
        return f"Text({self.min_length}, {self.max_length}, unicode)"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Text)
            and self.min_length == other.min_length
            and self.max_length == other.max_length
        )

    # Like all of Gymnasium's spaces, which are mutable.
    __hash__ = None  # type: ignore[assignment]

    @property
    def character_set(self) -> Any:
        """All characters, without a table."""
        return UnicodeCharacters()

    @property
    def character_list(self) -> Any:
        """All characters in code point order."""
        return UnicodeCharacters()

    def character_index(self, char: str) -> np.int32:
        """Return the index of a character in `character_list`."""
        return np.int32(UnicodeCharacters().index(char))

    @property
    def characters(self) -> str:
        """A string with all characters: 1.1 million of them."""
        return all_characters()


def choose(space: spaces.Space[Any], values: Any, weights: Sequence[float] | None = None) -> Any:
    """Return one of the values, for `sample(mask=[...])`, drawn with the space's own generator.

    Args:
        space: Every value must be in it.
        values: A list of values.
        weights: Their relative probabilities. Without them all are equally likely.

    Raises:
        ValueError: There are none, one is not in the space, or the weights are invalid.
    """
    if not isinstance(values, list | tuple) or not values:
        raise ValueError(f"{space} samples from a list of at least one value, not {quoted(values)!a}")
    for value in values:
        if value not in space:
            raise ValueError(f"{quoted(value)!a} is listed but not in {space}")
    if weights is None:
        return values[int(space.np_random.integers(len(values)))]
    total = float(sum(weights))
    if not (0 < total < float("inf")) or min(weights) < 0:
        raise ValueError("weights must be finite, none negative and at least one positive")
    return values[int(space.np_random.choice(len(values), p=[float(w) / total for w in weights]))]


# --- what Gymnasium does with spaces, where what it does with its own texts would be slow or wrong ---


@_flattening.flatten.register(Text)
def _flatten(space: Text, x: str) -> NDArray[np.int32]:  # type: ignore[misc]
    if x not in space:
        raise ValueError(f"{quoted(x)!a} is not in {space}")
    flat = np.full(space.max_length, len(UnicodeCharacters()), dtype=np.int32)
    flat[: len(x)] = to_indices(x)
    return flat


@_flattening.unflatten.register(Text)
def _unflatten(space: Text, x: NDArray[Any]) -> str:  # type: ignore[misc]
    del space
    # Next to other spaces a text flattens to whole floats; anything past the last character is padding.
    return from_indices(x[x < len(UnicodeCharacters())])


@_batching.create_empty_array.register(Text)
def _create_empty_array(space: Text, n: int = 1, fn: Any = np.zeros) -> tuple[str, ...]:
    del fn
    return (" " * space.min_length,) * n


@_batching.batch_differing_spaces.register(Text)
def _batch_differing(each: Sequence[Text]) -> spaces.Tuple[Any]:  # type: ignore[misc]
    return spaces.Tuple([deepcopy(space) for space in each], seed=deepcopy(each[0].np_random))


@_shared_memory.create_shared_memory.register(Text)
def _refuse_shared_memory(space: Text, n: int = 1, ctx: Any = None) -> NoReturn:
    # Gymnasium's shared memory for text returns the remains of an earlier, longer text.
    raise TypeError(
        f"{space} cannot be stored in shared memory: pass shared_memory=False to "
        "gymnasium.vector.AsyncVectorEnv, or in vector_kwargs of gymnasium.make_vec"
    )
