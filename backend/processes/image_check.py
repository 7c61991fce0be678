"""Image files decoded in a limited child, before they are kept: `python -m backend.processes.image_check`."""

from __future__ import annotations

import json

from backend.processes.limited_child import ChildLimitError, ChildLimits, LimitedChild, answer_questions
from tinkergym.errors import InvalidImageError, ServiceUnavailableError, TinkerGymError, from_wire
from tinkergym.images.stored_images import check_image

# Of what passes the checks of its structure, the most expensive files take 0.5 s and 0.4 GB.
_LIMITS = ChildLimits(cpu_seconds=5, memory_bytes=2**30, wall_seconds=30.0)


class ImageCheck:
    """`check_image` in a child. Thread-safe; checks one image at a time."""

    def __init__(self, limits: ChildLimits = _LIMITS) -> None:
        self._child = LimitedChild("backend.processes.image_check", limits)

    def __call__(self, data: bytes | bytearray, *, most_bytes: int, most_pixels: int) -> tuple[int, int]:
        """Return the width and height of an image file.

        Raises:
            InvalidImageError: As `check_image`, or decoding it takes too much time or memory.
            ServiceUnavailableError: It was not decoded within 30 s, because the machine is busy.
        """
        if len(data) > most_bytes:
            return check_image(data, most_bytes=most_bytes, most_pixels=most_pixels)  # which says so
        limits = json.dumps({"most_bytes": most_bytes, "most_pixels": most_pixels}).encode()
        try:
            answer = json.loads(self._child.ask(limits + b"\n" + data))
        except ChildLimitError as error:
            if error.limit == "time":
                raise ServiceUnavailableError(
                    "the image was not checked in time, because the machine is busy", hint="send it again"
                ) from error
            raise InvalidImageError(
                f"decoding the image was ended by a limit of the service ({error.limit})",
                hint="save it again with another program",
            ) from error
        if isinstance(answer, dict):
            raise from_wire(answer)
        width, height = answer
        return width, height

    def close(self) -> None:
        """End the child."""
        self._child.close()


def _answer(question: bytes) -> bytes:
    limits, _, data = question.partition(b"\n")
    try:
        found: object = check_image(data, **json.loads(limits))
    except TinkerGymError as error:
        if isinstance(error.__cause__, MemoryError):
            raise MemoryError from error  # noqa: TRY004 - the child reports it
        found = error.to_wire()
    return json.dumps(found).encode()


def main() -> None:
    """Answer questions until there are no more."""
    from PIL import Image

    Image.init()  # Its limit of memory begins after the imports.
    answer_questions(_answer)


if __name__ == "__main__":
    main()
