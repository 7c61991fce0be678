"""Players of a game by reference: `random` or another player of the game, a policy's version, a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError, NotFoundError, UnknownModelError
from tinkergym.evaluation.matches import Player
from tinkergym.registration.games import is_game
from tinkergym.remote.api import Api
from tinkergym.remote.policy import Policy
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.ids import PolicyRef, policy_of
from tinkergym.schema.jobs.parts import EnvironmentRef

if TYPE_CHECKING:
    from tinkergym.schema.jobs.view import JobView

_OF_ONE_SEAT = frozenset({"opponent", "seat"})
"""Environment settings for one seat that the game itself does not have."""


def find_player(api: Api, reference: str, game: Any, *, temperature: float | None = None) -> Player:
    """Return the player for a reference.

    Args:
        api: The service that has the policies and models.
        reference: A name that the game offers, such as `random`; `job-ID@40`, `job-ID/black@step:40`; or the
            name of a model.
        game: A PettingZoo game, for the names that it offers.
        temperature: Sampling temperature of a policy; None is as in training, or 1 for a model.

    Raises:
        InvalidRequestError: It is none of these, or names a job with several policies without the agent.
        NotFoundError: There is no such policy of yours.
    """
    if is_offered(game, reference):
        return Player(name=reference, plays=reference)
    if not PolicyRef.is_meant(reference):
        return _model_player(api, reference, temperature)
    return _policy_player(api, reference, temperature)


def find_seats(
    api: Api, reference: str, game: Any, agents: Sequence[str], *, temperature: float | None = None
) -> dict[str, Player]:
    """Return who plays each of some seats. A job that trains several policies plays each with its own.

    The job is asked for once, so all seats play the same version although it may train on meanwhile.

    Args:
        api: The service that has the policies and models.
        reference: As for `find_player`.
        game: A PettingZoo game, for the names that it offers.
        agents: The seats.
        temperature: Sampling temperature of a policy; None is as in training, or 1 for a model.

    Raises:
        InvalidRequestError: As `find_player`, or the job has no policy for one of the seats.
        NotFoundError: There is no such policy of yours.
    """
    ref = PolicyRef.find(reference)
    if ref is not None and ref.all_of_job:
        view = api.job(ref.owner)
        spec = view.spec
        if "" not in spec.trained_agents:
            found: dict[str, Player] = {}
            players: dict[str, Player] = {}
            for agent in agents:
                if agent not in spec.learning_seats:
                    raise InvalidRequestError(
                        f"{ref.owner} trained {', '.join(spec.learning_seats)}, not {agent}",
                        hint=f"name who plays {agent}",
                        field="players",
                    )
                own = str(replace(ref, agent=spec.policy_at(agent)))
                if own not in players:  # Seats may share a policy.
                    players[own] = _policy_player(api, own, temperature, view)
                found[agent] = players[own]
            return found
        return dict.fromkeys(agents, _policy_player(api, reference, temperature, view))
    return dict.fromkeys(agents, find_player(api, reference, game, temperature=temperature))


def is_offered(game: Any, name: str) -> bool:
    """Whether a game has a scripted player of this name."""
    check = getattr(game.unwrapped, "check_opponent", None)
    if check is None:
        return False
    try:
        check(name)
    except InvalidRequestError:
        return False
    return True


def version_player(
    api: Api, view: JobView, version: int, *, agent: str = "", temperature: float | None = None
) -> Player:
    """Return a version of a job's policy. A policy for some seats plays only those."""
    policy = Policy.of_job(api, view, version=version, temperature=temperature, agent=agent)
    return Player(
        name=policy_of(view.job_id, agent, version=version),
        plays=policy,
        seats=_seats_of(view, agent),
        step=version,
        temperature=policy.decoding.temperature,
    )


def version_players(
    api: Api,
    view: JobView,
    *,
    agents: Sequence[str] | None = None,
    versions: Sequence[int] | None = None,
    most: int = 5,
    temperature: float | None = None,
) -> list[Player]:
    """Return versions of some or all policies of a job.

    Args:
        api: The API of its service.
        view: The job.
        agents: Whose policies; None means all that the job trains.
        versions: Their numbers; None means the first, the newest, and some that have a checkpoint.
        most: The most per policy, if `versions` is None.
        temperature: Sampling temperature; None is as in training.
    """
    if agents is None:
        agents = view.spec.trained_agents
    found: list[Player] = []
    for agent in agents:
        kept = api.find_policy(policy_of(view.job_id, agent)).kept
        there = sorted({0, *kept, view.policy_version})
        if versions is not None:
            for version in versions:
                if version not in there:
                    raise _gone(policy_of(view.job_id, agent), version, there)
        chosen = _spread(there, most) if versions is None else sorted(set(versions))
        found += [version_player(api, view, one, agent=agent, temperature=temperature) for one in chosen]
    return found


def versions_named(api: Api, reference: str, *, temperature: float | None = None) -> list[Player]:
    """Return versions of all policies of `job-ID`, or of the one that `job-ID/AGENT` or `policy-ID` names.

    Raises:
        NotFoundError: There is no such job or policy of yours.
    """
    ref = PolicyRef.parse(reference, field="players")
    if ref.all_of_job:
        return version_players(api, api.job(ref.owner), temperature=temperature)
    found = api.find_policy(ref.whose)
    return version_players(api, api.job(found.job_id), agents=(found.agent,), temperature=temperature)


def game_of(view: JobView, game: str | None = None) -> EnvironmentRef:
    """Return the game that a job's policies play, even if it trains one seat against an opponent.

    Raises:
        InvalidRequestError: Its environment is not a game for several players.
    """
    spec = view.spec.played
    if spec is None:
        raise InvalidRequestError(f"{view.job_id} does not play episodes", field="game")
    own = spec.environment
    name = own.id.replace("Vs-v", "-v") if game is None and not is_game(own.id) else game or own.id
    if not is_game(name):
        raise InvalidRequestError(
            f"{name} is not a game for several players",
            hint="name the game that its policies play: game='board/TicTacToe-v0'",
            field="game",
        )
    kwargs = {key: value for key, value in own.kwargs.items() if key not in _OF_ONE_SEAT}
    return EnvironmentRef(id=name, kwargs=kwargs)


def _policy_player(
    api: Api, reference: str, temperature: float | None, view: JobView | None = None
) -> Player:
    """Return the player for a reference to a policy, of the job `view` if that is known already."""
    ref = PolicyRef.parse(reference, field="players")
    # The newest version may not have been saved, so ask the service only for the policy.
    found = api.find_policy(ref.whose if ref.version is not None else reference)
    view = view or api.job(found.job_id)
    version = ref.version if ref.version is not None else found.version
    if version is None:
        version = view.policy_version
    if version not in {0, view.policy_version, *found.kept}:
        raise _gone(ref.whose, version, [0, *found.kept, view.policy_version])
    return version_player(api, view, version, agent=found.agent, temperature=temperature)


def _model_player(api: Api, model: str, temperature: float | None) -> Player:
    try:
        bundle = api.renderer(model)
    except UnknownModelError as error:
        raise InvalidRequestError(
            f"{model!r} is not a player of the game, a policy or a model: {error.message}",
            hint="write random, a name that the game offers, job-ID@40, or the name of a model",
            field="players",
        ) from None
    decoding = Decoding().with_options(temperature=temperature)
    policy = Policy.of_model(api, bundle.model, renderer=Renderer.from_bundle(bundle), decoding=decoding)
    return Player(name=bundle.model, plays=policy, temperature=decoding.temperature)


def _gone(policy: str, version: int, there: Sequence[int]) -> NotFoundError:
    kept = ", ".join(map(str, sorted(set(there))))
    return NotFoundError(
        f"version {version} of {policy} is not stored", hint=f"kept: {kept}", field="versions"
    )


def _seats_of(view: JobView, agent: str) -> tuple[str, ...] | None:
    spec = view.spec
    if not agent or not spec.played:
        return None
    return tuple(name for name in spec.learning_seats if spec.policy_at(name) == agent)


def _spread(there: Sequence[int], most: int) -> list[int]:
    """Return at most this many of sorted numbers, including the first and the last."""
    if len(there) <= most:
        return list(there)
    places = {round(place * (len(there) - 1) / (most - 1)) for place in range(most)}
    return [there[place] for place in sorted(places)]
