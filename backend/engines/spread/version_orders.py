"""Brings replicas up to date: what each is told about the published versions, and what it then holds."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from backend.engines.spread.orders import HeldVersion, PublishOrder, RetireOrder
from backend.engines.spread.replica import Replica
from backend.network.worker_calls import WorkerCalls
from tinkergym.errors import ServiceUnavailableError, TinkerGymError

_log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 20.0
"""How long a publish waits for the replicas that held the version before."""
_ORDER_SECONDS = 600.0
"""A replica answers once it has fetched and checked the weights, which may be gigabytes."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0


class VersionOrders:
    """A replica gets the orders for a policy one after the other, and holds what it has answered."""

    def __init__(
        self,
        changed: threading.Condition,
        orders: Mapping[str, PublishOrder],
        calls: WorkerCalls,
        *,
        is_here: Callable[[Replica], bool],
        drop: Callable[[Replica, str], None],
    ) -> None:
        """Share the engine's lock and its orders by policy.

        Args:
            changed: Guards orders and replicas; notified when a replica holds a version.
            orders: The published version of each policy; they change.
            calls: How replicas are reached.
            is_here: Whether a replica was not lost. Called with the lock.
            drop: Called for a replica that cannot be reached, with the reason.
        """
        self._changed, self._orders, self._calls = changed, orders, calls
        self._is_here, self._drop = is_here, drop

    def bring(self, replica: Replica, policy: str) -> None:
        """Bring a replica up to date with a policy, unless that is under way."""
        with self._changed:
            if policy in replica.bringing or not self._is_here(replica):
                return
            replica.bringing.add(policy)
        self._calls.start(self._brought(replica, policy))

    async def _brought(self, replica: Replica, policy: str) -> None:
        pause = _FIRST_PAUSE_SECONDS
        # Asked anew each time: after a failure, a newer version may be due instead.
        while (order := self._due(replica, policy)) is not None:
            path = "/engine/publish" if isinstance(order, PublishOrder) else "/engine/retire"
            try:
                answer = await self._calls.posted(
                    replica.address, path, order.model_dump_json(), silence_seconds=_ORDER_SECONDS
                )
            except ServiceUnavailableError as error:
                self._drop(replica, str(error))
                return
            except TinkerGymError as error:
                _log.warning("engine host %s does not hold %s: %s", replica.engine_id, policy, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            with self._changed:
                if isinstance(order, PublishOrder):
                    replica.held[policy] = HeldVersion.model_validate_json(answer)
                else:
                    replica.held.pop(policy, None)
                self._changed.notify_all()

    def _due(self, replica: Replica, policy: str) -> PublishOrder | RetireOrder | None:
        """Return what the replica is to be told about a policy; None if it is up to date or lost."""
        with self._changed:
            order, held = self._orders.get(policy), replica.held.get(policy)
            is_here = self._is_here(replica)
            if is_here and order is not None and held != held_by(order):
                return order
            if is_here and order is None and held is not None:
                return RetireOrder(policy=policy)
            # Under the same lock as the check of the orders: an order set later sees that no task is running,
            # and starts one.
            replica.bringing.discard(policy)
            if not replica.bringing:
                replica.is_behind = False
            self._changed.notify_all()
            return None

    def wait_for(self, replicas: Sequence[Replica], policy: str) -> None:
        """Wait until these replicas are up to date with a policy, up to a limit."""

        def is_late(replica: Replica) -> bool:
            return policy in replica.bringing and self._is_here(replica)

        with self._changed:
            self._changed.wait_for(lambda: not any(map(is_late, replicas)), _PATIENCE_SECONDS)
            for replica in filter(is_late, replicas):
                _log.warning("engine host %s is late with %s", replica.engine_id, policy)
                replica.is_behind = True


def held_by(order: PublishOrder) -> HeldVersion:
    """Return what a replica holds that has carried out an order."""
    return HeldVersion(version=order.version, sha256=order.manifest.sha256)
