"""`tinkergym eval`: evaluate a policy with several episodes per task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from tinkergym.cli.console import INTERRUPTED, err, out
from tinkergym.cli.eval_crossplay import evaluate_crossplay, refuse_without_crossplay
from tinkergym.cli.eval_policy import PolicySource, open_policy
from tinkergym.cli.field_options import SettingOption, with_decoding_options
from tinkergym.cli.game_options import GameOptions
from tinkergym.cli.json_output import AsJson, emit
from tinkergym.cli.key_value_settings import parse_settings
from tinkergym.cli.named_environment import find_environment
from tinkergym.cli.options import (
    CUT,
    LARGEST_SEED,
    EnvironmentId,
    EnvironmentSettings,
    TemplateSettings,
    options_said,
    refuse_options,
)
from tinkergym.display.progress import episodes_shown
from tinkergym.errors import InvalidRequestError, ServiceUnavailableError
from tinkergym.evaluation.baselines import POLICIES
from tinkergym.evaluation.records import EpisodeRecord, RecordWriter
from tinkergym.evaluation.sampled_runs import wanted_episodes
from tinkergym.evaluation.scores import Scores
from tinkergym.evaluation.statistics import interval_text
from tinkergym.registration.environments import make
from tinkergym.rollout.executors import made
from tinkergym.rollout.local_environment import Environment, describe_for_one
from tinkergym.schema.evaluate_every import tasks_played
from tinkergym.tasks.grid import tasks_of
from tinkergym.trajectory.trajectory import reason_line

USUAL_TASKS = 32
BAR_COLUMNS = 30


_PolicyName = Annotated[
    str,
    typer.Option(
        metavar="POLICY",
        help="random (words of the observation), legal, gold, JOB_ID or MODEL; "
        "JOB_ID means its newest version, JOB_ID@0 the model before training.",
    ),
]
_Tasks = Annotated[
    int | None,
    typer.Option(
        help="Number of tasks: consecutive seeds. (default: 32; by index, at most all tasks, and all of a "
        "split that is named)",
        min=1,
    ),
]
_PassAtK = Annotated[
    str,
    typer.Option(
        "--k", metavar="K,K,...", help="Estimate pass@k and pass^k for these values of k, at most -n."
    ),
]
_Success = Annotated[
    float, typer.Option(help="The lowest return that counts as a success, for pass@k and pass^k.")
]
_ByIndex = Annotated[
    bool | None,
    typer.Option(
        "--by-index/--by-seed",
        help="Take tasks 0, 1, 2, ... of the dataset, or draw them by seed. (default: by index, if there is "
        "one)",
    ),
]
_MostTurns = Annotated[
    int, typer.Option(help="The most turns of an episode of random, legal or gold.", min=1)
]
_Crossplay = Annotated[
    str | None,
    typer.Option(
        metavar="PLAYER,PLAYER,...",
        help="For a game with several players: every player meets every other, in mirrored seats. A player "
        "is a player of the game, such as random, JOB_ID@40, JOB_ID/AGENT@40, or MODEL; a single JOB_ID "
        "means versions of that job and random.",
    ),
]
_Others = Annotated[
    str | None,
    typer.Option(
        metavar="PLAYER,PLAYER,...",
        help="With --crossplay, in a game for three or more: who takes seats that neither of two can. "
        "(default: the first listed player that can)",
    ),
]
_Pairs = Annotated[int, typer.Option(help="With --crossplay: seeds per pair of players.", min=1)]
_Png = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="With --crossplay: write the matrix as a picture, and the ratings next to it.",
    ),
]
_OutFile = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Store the episodes; continues a run that was stopped."),
]


@with_decoding_options(
    (
        SettingOption(
            "temperature", "Sampling temperature of a model; 0 takes the likeliest token. (default: 0)"
        ),
        SettingOption(
            "max_turn_tokens", "The longest completion of a model. (default: the job's own; 64 for a model)"
        ),
        *CUT,
    )
)
def evaluate(
    env: EnvironmentId,
    *,
    ctx: typer.Context,
    policy: _PolicyName = "random",
    samples: Annotated[int, typer.Option("-n", "--samples", help="Episodes per task.", min=1)] = 1,
    tasks: _Tasks = None,
    k: _PassAtK = "1",
    success: _Success = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the first task.", min=0, max=LARGEST_SEED)] = 0,
    by_index: _ByIndex = None,
    decoding: dict[str, Any],
    most_turns: _MostTurns = 200,
    out_file: _OutFile = None,
    crossplay: _Crossplay = None,
    others: _Others = None,
    pairs: _Pairs = 50,
    png: _Png = None,
    env_setting: EnvironmentSettings = None,
    template_set: TemplateSettings = None,
    as_json: AsJson = False,
) -> None:
    """Play episodes and print the mean return with its 95 % interval, pass@k, pass^k, and stop reasons.

    With --out every episode is written to FILE as it ends. The same command continues a run that was stopped;
    a FILE with other settings is refused. `tinkergym compare` compares two such files,
    `tinkergym replay` shows the episodes in one.

    With --crossplay the players of a game play each other: prints a matrix of mean returns, and ratings.

    Example: tinkergym eval board/TicTacToeVs-v0 --policy JOB_ID --temperature 1 -n 16 --k 1,4,16
    """
    said = options_said(ctx)
    variables = parse_settings(template_set or [])
    if crossplay is not None:
        of_games = GameOptions(
            crossplay=crossplay,
            others=others,
            pairs=pairs,
            png=png,
            seed=seed,
            temperature=decoding.get("temperature"),
            template_variables=variables,
            as_json=as_json,
        )
        evaluate_crossplay(env, env_setting or [], of_games, said)
        return
    refuse_without_crossplay(said)

    ks = _numbers(k, at_most=samples)
    described = describe_for_one(find_environment(env), parse_settings(env_setting or []))
    if by_index:
        described = _known(described, env)
    numbered = _numbered_tasks(described, tasks, seed=seed, by_index=by_index)
    with ExitStack() as stack:
        # An environment that is not known here is played by the service, if the policy belongs to it.
        if policy in POLICIES:
            described = _known(described, env)
        own = {**decoding, "template_variables": variables} if variables else decoding
        source = open_policy(policy, described, own, most_turns, stack)
        _refuse_idle(source.settings, samples)
        asked = _Asked(
            seed=seed, tasks=numbered or dict.fromkeys(range(tasks or USUAL_TASKS)), samples=samples
        )
        settings: dict[str, Any] = {"environment": described.ref.without_token().model_dump(mode="json")}
        settings |= {"seed": seed, "by_index": numbered is not None, **source.settings}
        records = _recorded(source, asked, settings, out_file)
    scores = Scores(records, success=success)
    what = f"{env}, policy {source.name}{_how(source, None if as_json else described)}"
    _report(scores, ks, what, out_file, {"settings": settings} if as_json else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Which episodes to play."""

    seed: int
    tasks: Mapping[int, int | None]
    """By what is added to the seed, the task's index; None draws it by that seed."""
    samples: int


def _recorded(
    source: PolicySource, asked: _Asked, settings: dict[str, Any], out_file: Path | None
) -> list[EpisodeRecord]:
    """Play the episodes that the file does not have yet; return all requested ones."""
    keys = {(asked.seed + number, sample) for number in asked.tasks for sample in range(asked.samples)}
    with ExitStack() as stack:
        writer = stack.enter_context(RecordWriter(out_file, settings)) if out_file is not None else None
        there = list(writer.episodes) if writer is not None else []
        wanted = wanted_episodes(
            seed=asked.seed,
            tasks=asked.tasks,
            samples=asked.samples,
            done={record.key for record in there},
        )
        records = [record for record in there if record.key in keys]
        _play(source.play(wanted), records, writer, len(keys))
    return records


def _play(
    played: Iterable[EpisodeRecord], records: list[EpisodeRecord], writer: RecordWriter | None, asked: int
) -> None:
    """Add each episode to `records`, and write it at once."""
    try:
        with episodes_shown(asked, done=len(records)) as one_more:
            for record in played:
                records.append(record)
                if writer is not None:
                    writer.write(record)
                one_more()
    except KeyboardInterrupt:
        kept = f"the same command continues in {writer.path}" if writer else "nothing is kept without --out"
        err.print(f"\nstopped after {len(records)} of {asked} episodes; {kept}", highlight=False)
        raise typer.Exit(INTERRUPTED) from None


def _refuse_idle(settings: Mapping[str, Any], samples: int) -> None:
    """Refuse options that need sampled answers if answers are greedy."""
    if settings.get("temperature") != 0:
        return
    if samples > 1:
        raise InvalidRequestError(
            f"at temperature 0 the {samples} episodes of a task would be the same",
            hint="add --temperature 1, or raise --tasks",
            field="--samples",
        )
    idle = [f"--{name.replace('_', '-')}" for name in ("top_p", "top_k") if name in settings]
    refuse_options(idle, "has no effect at temperature 0", hint="add --temperature 1, or leave it out")


def _how(source: PolicySource, shown: Environment | None) -> str:
    settings = source.settings
    if "temperature" not in settings:
        return ""
    known = None if shown is None else source.overlap(shown)
    trained = f", trained on {known.trained_on} of {known.tasks} tasks" if known else ""
    most = settings["max_turn_tokens"]
    return f", temperature {settings['temperature']:g}, at most {most} tokens per turn{trained}"


def _known(described: Environment, env: str) -> Environment:
    if described.make is None:
        make(env)  # This raises with close matches.
    return described


def _numbered_tasks(
    environment: Environment, wanted: int | None, *, seed: int, by_index: bool | None
) -> Mapping[int, int | None] | None:
    """Return the tasks to play by their numbers, as `evaluate` chooses them; None draws tasks by seed.

    Args:
        environment: The environment; not asked if its server is full, as episodes then wait for a place.
        wanted: How many.
        seed: Draws which, if not all are played.
        by_index: Whether the user asks for the first ones, of which there must be as many, or for none.
    """
    if environment.make is None or by_index is False:
        return None
    chosen = bool(by_index)
    try:
        with closing(made(environment.make, environment.ref)) as env:
            if chosen and (env.metadata or {}).get("data") == "free":
                raise InvalidRequestError(
                    f"{environment.ref.id} is data-free: seeds determine the tasks, so they have no index",
                    hint="leave it out",
                    field="--by-index",
                )
            source = tasks_of(env)
            there = 0 if source is None else len(source)
    except ServiceUnavailableError:
        there = 0
    names_split = "split" in environment.ref.kwargs
    if chosen:
        if there and wanted is not None and wanted > there:
            raise InvalidRequestError(
                f"{environment.ref.id} has {there} tasks, not {wanted}",
                hint=f"use --tasks {there} or less with --by-index",
                field="--tasks",
            )
        usual = wanted or USUAL_TASKS
        whole = there and (usual > there or (names_split and wanted is None))
        return {index: index for index in range(there if whole else usual)}
    if not there:
        return None
    played = tasks_played(
        there, episodes=wanted, samples=1, names_split=names_split, usual=USUAL_TASKS, seed=seed
    )
    # By task, so that a run which is continued with more tasks finds those that it has. Those that are played
    # again have another seed.
    return {(task or 0) + there * (place // there): task for place, task in enumerate(played)}


def _numbers(text: str, *, at_most: int) -> list[int]:
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = [0]
    if found[0] < 1:
        raise InvalidRequestError(
            f"{text!r} is not a list of numbers", hint="write it as --k 1,4,16", field="--k"
        )
    if found[-1] > at_most:
        raise InvalidRequestError(
            f"pass@{found[-1]} needs at least {found[-1]} episodes per task, not {at_most}",
            hint=f"use -n {found[-1]}",
            field="--k",
        )
    return found


def _report(
    scores: Scores, ks: Sequence[int], what: str, out_file: Path | None, as_json: dict[str, Any] | None
) -> None:
    """Print the scores, or emit them with `as_json`."""
    if as_json is not None:
        emit({**as_json, **scores.to_json(ks)})
    else:
        _print(scores, ks, what, out_file)
    if not scores.completed:
        raise typer.Exit(1)


def _print(scores: Scores, ks: Sequence[int], what: str, out_file: Path | None) -> None:
    tasks = len({record.seed for record in scores.records})
    out.print(
        f"{escape(what)}, episodes: {len(scores.records)}, tasks: {tasks}", highlight=False, soft_wrap=True
    )
    if scores.completed:
        interval = interval_text(*scores.interval, ".3f")
        out.print(f"  mean return  {scores.mean:.3f} {interval}", markup=False, highlight=False)
        # pass^1 is pass@1.
        figures = [("@", k, scores.pass_at(k)) for k in ks]
        figures += [("^", k, scores.pass_hat(k)) for k in ks if k > 1]
        for sign, k, found in figures:
            if found is None:
                out.print(f"  pass{sign}{k:<7} - (no task has {k} completed episodes)", highlight=False)
                continue
            left_out = f" over {found.tasks} of {tasks} tasks" if found.tasks < tasks else ""
            interval = interval_text(found.low, found.high, ".3f")
            out.print(
                f"  pass{sign}{k:<7} {found.mean:.3f} {interval}{left_out}", markup=False, highlight=False
            )
        out.print(f"  a success is a return of at least {scores.success:g}", highlight=False)
    out.print("  ended by", highlight=False)
    most = max(scores.stop_reasons.values())
    for reason, count in scores.stop_reasons.items():
        bar = "█" * max(1, round(BAR_COLUMNS * count / most))
        out.print(f"    {reason:20} {count:6} {bar}", highlight=False)
    if scores.failed:
        first = next(r.trajectory for r in scores.records if not r.trajectory.completed)
        reason = reason_line(first.stop_reason, first.error)
        out.print(
            f"  {scores.failed} failed and are excluded; the first: {first.stop_reason.value}: {reason}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    if out_file is not None:
        out.print(f"  read them: tinkergym replay {out_file}", markup=False, highlight=False, soft_wrap=True)
