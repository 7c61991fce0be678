"""Image uploads: before a prompt or a dataset that shows them, and each image only once."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from tinkergym.errors import (
    InvalidImageError,
    ServiceUnavailableError,
    TinkerGymError,
    TooManyRequestsError,
)
from tinkergym.images.stored_images import ImageFile, alive
from tinkergym.remote.transport import Connection
from tinkergym.schema.uploaded_data import MOST_NAMES, ImageNames


class ImageUpload:
    """Sends images over one connection. Thread-safe.

    Images that the service already has, for example from an earlier process of the same tenant, are not sent.
    """

    def __init__(self, connection: Connection, path: str, params: Mapping[str, str] | None = None) -> None:
        """Upload below `path` of `connection`.

        Args:
            connection: The connection to the gateway or the pool.
            path: The routes are `PUT path/{sha256}` and `POST path/missing`.
            params: Query parameters.
        """
        self._connection, self._path, self._params = connection, path, params
        self._lock = threading.Lock()
        self._there: set[str] = set()

    def send(
        self,
        hashes: Iterable[str],
        *,
        files: Mapping[str, ImageFile] | None = None,
        refused: dict[str, TinkerGymError] | None = None,
    ) -> None:
        """Make sure that the service has these images.

        Args:
            hashes: Hashes of the images.
            files: The images; others are looked up among those seen in messages.
            refused: Receives the error of each image that cannot be sent, by its hash, and the others are
                still sent. None raises the first error.

        Raises:
            ServiceUnavailableError: The service is away, so sending again may help.
            InvalidImageError: The service does not have an image, and it is no longer available here.
            PayloadTooLargeError: The tenant's share of the service's disk is used up.
        """
        new = [sha256 for sha256 in dict.fromkeys(hashes) if sha256 not in self._there]
        if not new:
            return
        # One thread sends; others that want the same image wait and then find it there.
        with self._lock:
            new = [sha256 for sha256 in new if sha256 not in self._there]
            for start in range(0, len(new), MOST_NAMES):
                self._send(new[start : start + MOST_NAMES], files or {}, refused)

    def forget(self, hashes: Iterable[str]) -> None:
        """Ask for these images again before they are used: the service may have deleted them."""
        with self._lock:
            self._there.difference_update(hashes)

    def _send(
        self,
        hashes: list[str],
        files: Mapping[str, ImageFile],
        refused: dict[str, TinkerGymError] | None,
    ) -> None:
        if not hashes:
            return
        asked = ImageNames(images=hashes).model_dump_json().encode()
        answer = self._connection.call("POST", f"{self._path}/missing", body=asked, params=self._params)
        missing = ImageNames.model_validate_json(answer).images
        self._there.update(set(hashes).difference(missing))
        for sha256 in missing:
            try:
                self._put(sha256, files)
            except (ServiceUnavailableError, TooManyRequestsError):
                raise
            except TinkerGymError as error:
                if refused is None:
                    raise
                refused[sha256] = error
            else:
                self._there.add(sha256)

    def _put(self, sha256: str, files: Mapping[str, ImageFile]) -> None:
        file = files.get(sha256) or alive(sha256)
        if file is None:
            raise InvalidImageError(
                f"the service does not have the image {sha256}, and it is no longer in this process",
                hint="show the image itself, not only its hash",
            )
        self._connection.call("PUT", f"{self._path}/{sha256}", body=file.data, params=self._params)
