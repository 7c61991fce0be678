"""The secrets of leased episodes, for the service's own workers: jobs and boards only have their names."""

from __future__ import annotations

import logging

from backend.errors import ConfigError
from backend.external import environment_tokens, judges, opponent_models
from backend.external.environment_tokens import ReadSecret
from backend.external.urls import is_remote
from tinkergym.schema.episodes import EpisodeRequest, LeaseReply, SeatPlan
from tinkergym.schema.jobs.parts import EnvironmentRef

_log = logging.getLogger(__name__)


def with_secrets(reply: LeaseReply, read: ReadSecret) -> LeaseReply:
    """Return leased episodes with tokens and keys in place of their names.

    A secret that is gone is left out, so that the server that wants it says what is missing.

    Args:
        reply: The episodes.
        read: Returns a secret by its name; None if there is none.
    """
    return reply.model_copy(update={"episodes": [_with_secrets(one, read) for one in reply.episodes]})


def _with_secrets(episode: EpisodeRequest, read: ReadSecret) -> EpisodeRequest:
    seats = {agent: _seat(seat, read) for agent, seat in episode.seats.items()}
    return episode.model_copy(update={"environment": _environment(episode.environment, read), "seats": seats})


def _environment(ref: EnvironmentRef, read: ReadSecret) -> EnvironmentRef:
    try:
        return environment_tokens.fetch(ref, read) if is_remote(ref) else judges.fetch(ref, read)
    except ConfigError as error:
        _log.warning("an episode of %s: %s", ref.id, error)
        return ref.without_token() if is_remote(ref) else judges.without_key(ref)


def _seat(seat: SeatPlan, read: ReadSecret) -> SeatPlan:
    if seat.table is None or seat.table.external is None or not seat.table.external.api_key:
        return seat
    external = seat.table.external
    try:
        key = opponent_models.fetch(external.api_key, read)
    except ConfigError as error:
        _log.warning("the external model %s: %s", external.model, error)
        key = ""
    table = seat.table.model_copy(update={"external": external.model_copy(update={"api_key": key})})
    return seat.model_copy(update={"table": table})
