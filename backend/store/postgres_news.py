"""Commits of other processes, by LISTEN and NOTIFY.

A process tells the others that it has committed, not what: they look for themselves. It does so outside the
transaction, because a NOTIFY in it makes all commits of the server wait for each other, and once for all
commits within `_BETWEEN_SECONDS`. A lost notification only makes readers as late as their polling.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

_log = logging.getLogger(__name__)

_CHANNEL = "tinkergym_commits"
_BETWEEN_SECONDS = 0.05
_LOOK_SECONDS = 1.0
"""How often a listener without news checks its connection."""
_AGAIN_SECONDS = 1.0


class PostgresNews:
    """Counts commits. Its two threads start with their first use."""

    def __init__(self, engine: Engine) -> None:
        """Prepare.

        Args:
            engine: Opens connections that commit each statement.
        """
        self._engine = engine
        self._guard = threading.Lock()
        self._count = 0
        self._hears = False
        self._listener: threading.Thread | None = None
        self._teller: threading.Thread | None = None
        self._untold = threading.Event()
        self._closed = threading.Event()

    def count(self) -> int | None:
        """Return a number that changes with each commit; None while notifications cannot arrive."""
        with self._guard:
            if self._listener is None and not self._closed.is_set():
                self._listener = threading.Thread(target=self._listen, name="database news", daemon=True)
                self._listener.start()
            return self._count if self._hears else None

    def committed(self) -> None:
        """Count a commit of this process, and tell the others soon."""
        with self._guard:
            self._count += 1
            if self._teller is None and not self._closed.is_set():
                self._teller = threading.Thread(target=self._tell, name="database commits", daemon=True)
                self._teller.start()
        self._untold.set()

    def close(self) -> None:
        """Tell what was not told yet, and end."""
        self._closed.set()
        self._untold.set()
        with self._guard:
            threads = [thread for thread in (self._listener, self._teller) if thread is not None]
        if threads:
            with suppress(SQLAlchemyError), self._engine.connect() as connection:
                connection.execute(text(f"NOTIFY {_CHANNEL}"))  # This also wakes the listener.
        for thread in threads:
            thread.join(timeout=_AGAIN_SECONDS)

    def _tell(self) -> None:
        connection = None
        while not self._closed.is_set():
            self._untold.wait()
            # Before the NOTIFY, so that a commit during it is told in the next round.
            self._untold.clear()
            try:
                connection = connection or self._engine.connect()
                connection.execute(text(f"NOTIFY {_CHANNEL}"))
            except SQLAlchemyError:  # Readers poll; who writes next notices what is wrong.
                if connection is not None:
                    connection.invalidate()
                    connection.close()
                connection = None
            self._closed.wait(_BETWEEN_SECONDS)
        if connection is not None:
            connection.close()

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                with self._engine.connect() as connection:
                    connection.execute(text(f"LISTEN {_CHANNEL}"))
                    driver = connection.connection.driver_connection
                    assert driver is not None
                    self._heard(True)  # Counts: there may have been commits before.
                    while not self._closed.is_set():
                        for _ in driver.notifies(timeout=_LOOK_SECONDS, stop_after=1):
                            self._heard(True)
                        connection.execute(text("SELECT 1"))
            except Exception as error:  # The driver's own errors come from `notifies`.
                if not self._closed.is_set():
                    _log.warning("no notifications from the database, polling instead: %s", error)
            self._heard(False)
            self._closed.wait(_AGAIN_SECONDS)

    def _heard(self, hears: bool) -> None:
        with self._guard:
            self._count += 1
            self._hears = hears
