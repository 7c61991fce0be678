"""Tools of seats played by the service: only those that the operator installed with a pack."""

from __future__ import annotations

from tinkergym.errors import InvalidRequestError, PythonToolRefusedError
from tinkergym.registration.packs import pack_modules
from tinkergym.rollout.table_tools import SANDBOX
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.tools.sandbox import isolation_for


def refuse_foreign(spec: JobSpec) -> None:
    """Refuse tools that would make the service import or run code that its operator did not choose.

    Raises:
        InvalidRequestError: A tool does not belong to a pack, or needs arguments from the job.
        PythonToolRefusedError: It is the sandbox, and this service or its machine does not allow it.
    """
    if not isinstance(spec, RLSpec) or spec.rollout != "server":
        return
    packs = pack_modules() - {"tinkergym"}
    for agent in spec.trained_agents:
        tools = spec.tools_of(agent)
        for one in () if tools is None else tools.tools:
            module = one.tool.partition(":")[0].partition(".")[0]
            if one.arguments or (one.tool != SANDBOX and module not in packs):
                raise InvalidRequestError(
                    f"the service does not run the tool {one.tool!r} of {agent!r}"
                    + (" with arguments" if one.arguments else ""),
                    hint=f"name {SANDBOX} or a tool that a pack marks with @tool, without arguments, or play "
                    "the episodes with rollout='client'",
                    field=f"agents.{agent}.tools",
                )
            if one.tool == SANDBOX:
                _require_isolation(agent)


def _require_isolation(agent: str) -> None:
    try:
        isolation_for(None)
    except PythonToolRefusedError as error:
        error.field = f"agents.{agent}.tools"
        raise
