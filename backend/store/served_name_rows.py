"""The names to which a tenant promotes versions of its policies."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import delete

from backend.store.database import Database, write_row
from backend.store.policies import names_of
from backend.store.references import find_policy
from backend.store.tables import served_names
from tinkergym.errors import ConflictError, NotFoundError
from tinkergym.schema.ids import PolicyRef, policy_of
from tinkergym.schema.refusals import Refusal
from tinkergym.schema.served_names import MOST_NAMES, Promotion, ServedName


class NameRows:
    """One tenant's names."""

    def __init__(self, database: Database, tenant_id: str, clock: Callable[[], float]) -> None:
        self._db, self._tenant_id, self._clock = database, tenant_id, clock

    def all(self) -> dict[str, ServedName]:
        """Return them; cached until the next commit."""
        return self._db.read_cache.get(("served names", self._tenant_id), self._all)

    def _all(self) -> dict[str, ServedName]:
        with self._db.read() as connection:
            return {one.name: one for one in names_of(connection, self._tenant_id)}

    def promote(self, name: str, wanted: Promotion) -> ServedName:
        """Let a name serve a version, or a share of its requests; it is durable when this returns.

        Raises:
            NotFoundError: There is no such policy, or the version is not stored.
            InvalidRequestError: The reference is malformed, or a share needs a version that takes the rest.
            ConflictError: The tenant has too many names.
        """
        ref = PolicyRef.parse(wanted.policy)
        with self._db.write() as connection:
            found = find_policy(connection, ref, tenant_id=self._tenant_id, field="policy")
            version = policy_of(found.job_id, found.agent, version=found.version())
            names = {one.name: one for one in names_of(connection, self._tenant_id)}
            before = names.get(name)
            if before is None and len(names) >= MOST_NAMES:
                raise ConflictError(f"you have {MOST_NAMES} names already", hint="remove one first")
            if wanted.share == 1:
                row = {"policy": version, "canary": "", "share": 0.0}
            elif before is None:
                reason = f"needs a version that takes the rest of the requests, and {name!r} serves none yet"
                raise Refusal("share", reason, "promote a version without a share first", "no_rest").error()
            else:
                row = {"policy": before.policy, "canary": version, "share": wanted.share}
            row["changed_at"] = self._clock()
            write_row(connection, served_names, {"tenant_id": self._tenant_id, "name": name}, row)
        return ServedName.model_validate({"name": name, **row})

    def remove(self, name: str) -> None:
        """Remove a name.

        Raises:
            NotFoundError: The tenant has no such name.
        """
        mine = served_names.c.tenant_id == self._tenant_id, served_names.c.name == name
        with self._db.write() as connection:
            if not connection.execute(delete(served_names).where(*mine)).rowcount:
                raise NotFoundError(
                    f"there is no name {name!r}", hint="`tinkergym jobs names` lists yours", field="name"
                )
