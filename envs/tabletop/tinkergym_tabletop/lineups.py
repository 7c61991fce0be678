"""Who plays all seats of a game: versions of a job's policies, or what a reference names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinkergym.errors import InvalidRequestError
from tinkergym.registration.games import make_playable
from tinkergym.remote.api import Api
from tinkergym.remote.client import Client
from tinkergym.remote.game_players import find_seats, game_of, version_players
from tinkergym.schema.ids import PolicyRef, policy_of
from tinkergym.schema.jobs.view import JobView
from tinkergym_tabletop.exploitability_curve import ExploitabilityCurve, Lineup, exploitability_curve


def exploitability_of_job(
    client: Client,
    job_id: str,
    versions: Sequence[int] | None = None,
    *,
    game: str | None = None,
    greedy: bool = False,
) -> ExploitabilityCurve:
    """Compute the exploitability of versions of a job's policies, and of the average of their strategies.

    The policies play their own seats, or one policy plays all; see `ratings.md`.

    Args:
        client: The job's service.
        job_id: The job.
        versions: Versions of each policy; None means all that are stored.
        game: The game, if the job trained something else; None is the job's own.
        greedy: Measure play at temperature 0, which is also exact in larger games, such as tic-tac-toe.

    Raises:
        InvalidRequestError: The game is too large, or its chance events cannot be enumerated.
        NotFoundError: A version is not stored.
    """
    view = client.api.job(job_id)
    reference = game_of(view, game)
    table = make_playable(reference)
    lineups = version_lineups(client.api, view, table.possible_agents, versions=versions)
    return exploitability_curve(table, lineups, name=reference.id, greedy=greedy)


def lineups_named(api: Api, name: str, game: Any) -> list[Lineup]:
    """Return all stored versions of a job named without a version, else what `lineup_named` returns."""
    ref = PolicyRef.find(name)
    if ref is not None and ref.all_of_job and not ref.has_version:
        return version_lineups(api, api.job(ref.owner), game.possible_agents)
    return [lineup_named(api, name, game)]


def version_lineups(
    api: Api, view: JobView, agents: Sequence[str], *, versions: Sequence[int] | None = None
) -> list[Lineup]:
    """Return versions of a job's policies that play all seats together.

    Args:
        api: The API of its service.
        view: The job.
        agents: The game's agents.
        versions: Their numbers; None means all that every policy has stored.

    Raises:
        NotFoundError: A version is not stored.
        InvalidRequestError: The job trained no policy for one of the seats.
    """
    trained = view.spec.trained_agents
    if versions is None:
        kept = [{0, *api.find_policy(policy_of(view.job_id, own)).kept} for own in trained]
        versions = sorted(set.intersection(*kept) | {view.policy_version})
    lineups = []
    for version in versions:
        players = version_players(api, view, versions=[version])
        policies: dict[str, Any] = {  # no scripts are among them
            agent: next((one.plays for one in players if one.can_play(agent)), None) for agent in agents
        }
        without = next((agent for agent in agents if policies[agent] is None), None)
        if without is not None:
            raise InvalidRequestError(
                f"{view.job_id} trained no policy for {without}",
                hint="a best response needs one for each seat",
                field="agents",
            )
        lineups.append(Lineup(name=policy_of(view.job_id, version=version), policies=policies, step=version))
    return lineups


def lineup_named(api: Api, reference: str, game: Any) -> Lineup:
    """Return the policies that a reference names, at all seats of a game.

    Args:
        api: The service that has the policies and models.
        reference: `job-ID@40`; a job that trains several policies plays each seat with its own. Or a model.
        game: A PettingZoo game.

    Raises:
        InvalidRequestError: It is none of these, or has no policy for one of the seats.
        NotFoundError: There is no such policy of yours.
    """
    found = find_seats(api, reference, game, game.possible_agents)
    for agent, player in found.items():
        if not player.can_play(agent) or player.policy is None:
            raise InvalidRequestError(
                f"{reference} has no policy for {agent}",
                hint="name a job that trained all seats, as JOB_ID@40, a model, or random",
                field="players",
            )
    policies = {agent: player.policy for agent, player in found.items() if player.policy is not None}
    return Lineup(name=reference, policies=policies)
