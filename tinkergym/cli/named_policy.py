"""Find the trained policy or the model that `--policy` names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinkergym.errors import InvalidRequestError, NotFoundError, PolicyVersionGoneError, UnknownModelError
from tinkergym.remote.client import Client
from tinkergym.remote.policy import Policy
from tinkergym.schema.ids import PolicyRef

_FIELD = "--policy"


def named_policy(
    client: Client, name: str, sampling: Mapping[str, Any], *, others: Sequence[str] = ()
) -> Policy:
    """Return the policy of a job, at a definite version, or a model without an adapter.

    The newest version is looked up once: a job that still trains would change it between episodes.

    Args:
        client: The client of the service.
        name: `JOB_ID@40`, `JOB_ID/AGENT@best`, `policy-ID`, a name to which a version was promoted, or the
            name of a model.
        sampling: As for `Job.policy`, or its `template_variables`.
        others: Other names that the command knows, for the error.

    Raises:
        InvalidRequestError: There is no such job, policy or model, or the reference is malformed.
        NotFoundError: The version is not stored.
    """
    sampling = dict(sampling)
    variables = sampling.pop("template_variables", {})
    try:
        if not PolicyRef.is_meant(name):
            return client.policy(name, template_variables=variables, **sampling)
        job_id, version, agent = client.trained_policy(PolicyRef.parse(name, field=_FIELD))
        job = client.job(job_id)
        version = job.view().policy_version if version is None else version
        policy = job.policy(version, **sampling, agent=agent)
    except PolicyVersionGoneError as error:
        raise NotFoundError(error.message, hint=error.hint, field=_FIELD) from None
    except (UnknownModelError, NotFoundError) as error:
        known = "".join(f"{other}, " for other in others)
        raise InvalidRequestError(
            f"{name!r} is not a policy ({known}a job or policy of yours, or a model of the service): "
            f"{error.message}",
            hint="; ".join(filter(None, ["`tinkergym jobs` lists your jobs", error.hint])),
            field=_FIELD,
        ) from None
    policy.template_variables |= variables
    return policy
