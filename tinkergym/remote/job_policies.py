"""The policies that a job trains, by version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

from tinkergym.errors import (
    InvalidRequestError,
    PolicyVersionGoneError,
)
from tinkergym.evaluation.crossplay import CrossPlay, crossplay
from tinkergym.evaluation.ratings import Ratings
from tinkergym.registration.games import make_playable
from tinkergym.remote.game_players import find_player, game_of, version_players
from tinkergym.remote.job_record import JobRecord
from tinkergym.remote.policy import Policy
from tinkergym.schema.decoding import SeededOptions
from tinkergym.schema.ids import chosen_version
from tinkergym.schema.parsing import parse
from tinkergym.schema.served_names import Promotion, ServedName, name_fault


class JobPolicies(JobRecord):
    """The policies that a job trains: each version that is stored can act, play matches, or be served."""

    def policy(
        self,
        which: int | str | None = None,
        /,
        *,
        version: int | None = None,
        agent: str = "",
        **decoding: Unpack[SeededOptions],
    ) -> Policy:
        """Return the job's policy.

        Args:
            which: Short for `agent` if it is text, as in `job.policy("black")`, otherwise for `version`.
            version: None uses the newest for every action, also while the job trains; 0 is the model before
                training. Other versions need a checkpoint.
            agent: Whose policy, if the job trains the agents of a game.
            **decoding: Fields of `Decoding`: temperature and max_turn_tokens, which are the job's if left
                out, top_p, top_k, structured, stop, and seed, which makes its actions repeatable.

        Raises:
            InvalidRequestError: A sampling setting is out of range, `version` is not a number, the job has no
                such agent or several policies of which none is named, or `which` is something else than is
                given by its name.
            PolicyVersionGoneError: `version` is neither 0 nor the newest and has no checkpoint.
        """
        agent, version = _agent_and_version(which, agent, version)
        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
            raise InvalidRequestError(
                f"must be a version number, not {version!r}",
                hint="leave it out for the newest; 0 is the model before training",
                field="version",
            )
        # Checkpoints of several policies are not listed here; the service knows which are stored.
        if not agent and version and version != (newest := self.view().policy_version):
            kept = sorted({checkpoint.policy_version for checkpoint in self.checkpoints(agent=agent)})
            if version not in kept:
                there = ", ".join(map(str, kept)) or "none"
                raise PolicyVersionGoneError(
                    f"version {version} of {self.id} has no checkpoint, and is neither the newest version "
                    f"({newest}) nor 0, the model before training",
                    hint=f"versions with a checkpoint: {there}; see checkpoint_every and keep_checkpoints",
                    field="version",
                )
        return Policy.of_job(self._api, self._view, version=version, agent=agent, **decoding)

    def promote(
        self, version: int | str = "latest", *, name: str = "", agent: str = "", share: float = 1.0
    ) -> ServedName:
        """Let a name of the OpenAI API serve a version of the job's policy, from the next request on.

        Args:
            version: 40, or "best", "latest" or "step:40"; it needs a checkpoint, which is then kept.
            name: What requests have as `model`; empty is the job's name.
            agent: Whose policy, if the job trains several.
            share: The share of the requests. Below 1, the others stay with the version that the name serves
                now, and requests of one `user` all get the same one.

        Raises:
            NotFoundError: The version is not stored; the hint lists those that are.
            InvalidRequestError: The name is empty, invalid or that of a model, or a share has no rest.
        """
        chosen = name or self.spec.name
        if fault := name_fault(chosen):
            fault = replace(fault, hint=f"give it with name=...: {fault.hint}")
            raise fault.error()
        reference = chosen_version(self.id, agent, version)
        return self._api.promote(chosen, parse(Promotion, {"policy": reference, "share": share}))

    def crossplay(
        self,
        versions: Sequence[int] | None = None,
        *,
        against: Sequence[str] = ("random",),
        others: Sequence[str] = (),
        game: str | None = None,
        pairs: int = 50,
        seed: int = 0,
        temperature: float | None = None,
        progress: bool | None = None,
    ) -> CrossPlay:
        """Let versions of the job's policies play each other and others in mirrored games; see `ratings.md`.

        Args:
            versions: Versions of each policy; None means the first, the newest, and up to three with a
                checkpoint.
            against: Further players: players of the game, such as `random`; `job-ID@40`; models.
            others: In a game for three or more, players as in `against` for the seats that neither of two
                policies can take, each the first that can. Without one, the first of `against` that can.
            game: The game, if the job did not train in it; None uses the job's.
            pairs: Seeds per matchup, each played once per assignment of seats.
            seed: The first seed.
            temperature: Sampling temperature of the policies; None is as in training.
            progress: Show on stderr how many games have ended; None does so only on a terminal.

        Raises:
            InvalidRequestError: The job's environment is not a game, or a player is unknown.
            NotFoundError: A version is not stored.
        """
        view = self.view()
        reference = game_of(view, game)
        players = version_players(self._api, view, versions=versions, temperature=temperature)
        table = make_playable(reference)
        further, fill = (
            [find_player(self._api, name, table, temperature=temperature) for name in names]
            for names in (against, others)
        )
        table.close()
        return crossplay(
            [*players, *further], reference, pairs=pairs, seed=seed, others=fill, progress=progress
        )

    def ratings(self, *, anchor: str | None = None, **how: Any) -> Ratings:
        """Rate versions of the job's policies. Plays new games; `how` is as for `crossplay`.

        Args:
            anchor: The player with rating 0; None uses `random` if it plays, else the mean.
            how: See `crossplay`.
        """
        return self.crossplay(**how).ratings(anchor=anchor)


def _agent_and_version(which: int | str | None, agent: str, version: int | None) -> tuple[str, int | None]:
    """Return whose policy, and which version of it, `Job.policy` was asked for."""
    named: int | str | None = agent or None if isinstance(which, str) else version
    if which is not None and named is not None:
        name = "agent" if isinstance(which, str) else "version"
        raise InvalidRequestError(
            f"the {name} is given twice, as {which!r} and as {name}={named!r}", hint="give one", field=name
        )
    return (which, version) if isinstance(which, str) else (agent, version if which is None else which)
