"""What the function of a custom loss returned: a loss, and its gradient with respect to each logprob."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tinkergym.errors import InvalidRequestError, NonFiniteLossError
from tinkergym.user_code.quoting import quoted, type_in_words
from tinkergym.user_code.returned_values import finite_number, number

Gradient = Callable[[list[list[float]]], tuple[float, list[list[float]]]]
"""From logprobs (per sequence, one per token with `loss_mask` True) to a loss and its gradient."""

_FORM = "return (loss, gradient), with a list of numbers for each sequence, one for each of its logprobs"


def loss_and_gradient(
    returned: object, logprobs: Sequence[Sequence[float]]
) -> tuple[float, list[list[float]]]:
    """Return the loss and the gradient, one number per logprob.

    Args:
        returned: What the user's function returned; arrays and tensors are accepted where numbers and lists
            are.
        logprobs: What it was called with.

    Raises:
        NonFiniteLossError: The loss is NaN or infinite.
        InvalidRequestError: The value has another form, or a number of the gradient is not finite.
    """
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        what = f"{len(returned)} values" if isinstance(returned, tuple | list) else type_in_words(returned)
        raise _refused(f"returned {what} instead of a loss and its gradient: {quoted(returned)}")
    try:
        loss = number(returned[0])
    except ValueError as error:
        raise _refused(f"returned as its loss {error}") from None
    if not math.isfinite(loss):
        raise NonFiniteLossError(
            f"the function of forward_backward_custom returned the loss {loss}",
            hint="look for a logarithm or a division of 0 in it; no gradient was added",
        )
    rows = _listed(returned[1], len(logprobs), "the gradient", "sequences")
    return loss, [
        _row(row, len(own), place) for place, (row, own) in enumerate(zip(rows, logprobs, strict=True))
    ]


def _row(row: object, count: int, sequence: int) -> list[float]:
    numbers = []
    for place, value in enumerate(_listed(row, count, f"the gradient of sequence {sequence}", "logprobs")):
        try:
            numbers.append(finite_number(value))
        except ValueError as error:
            raise _refused(f"returned for logprob {place} of sequence {sequence} {error}") from None
    return numbers


def _listed(value: object, count: int, name: str, of: str) -> list[object]:
    if isinstance(value, str | bytes):
        raise _refused(f"returned {quoted(value)} as {name}")
    try:
        as_list = getattr(value, "tolist", None)  # Of arrays and tensors, where it is faster.
        items = list(as_list() if callable(as_list) else value)  # type: ignore[arg-type] # else TypeError
    except TypeError:
        raise _refused(f"returned {type_in_words(value)} as {name}, for {count} {of}") from None
    if len(items) != count:
        raise _refused(f"returned {len(items)} entries as {name}, for {count} {of}")
    return items


def _refused(what: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the function of forward_backward_custom {what}", hint=_FORM, field="gradient"
    )
