"""A recipe: a training script whose settings are in TOML files next to it.

It reads the settings and the command line, shows the job, and writes the result. The script itself says what
is trained in which environment.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from rich.console import Console

from examples.shared.nested import merged
from examples.shared.recipe_picture import Evaluated, Run, draw
from tinkergym.display.progress import TrainingDisplay
from tinkergym.errors import InvalidRequestError
from tinkergym.reporting.report import curve, reward_curves
from tinkergym.schema.events import EvaluationEvent, Event, StepEvent
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.tasks.sequence import SequenceTasks

LAPTOP = "laptop"
"""The settings file that is used if none is named."""
SHORT = "short"
"""The table of a settings file with the overrides for a short run; a variant has a table of its own name."""

_SEEDS = 2**63
"""A job's seed is less."""
_LONGEST_FACT = 200
"""Characters; what is longer is only in the result."""


class RecipeJob(Protocol):
    """What a recipe needs from a job, such as `tinkergym.Job`."""

    @property
    def id(self) -> str:
        """The job's id."""
        ...

    @property
    def spec(self) -> JobSpec:
        """Its settings."""
        ...

    def events(self) -> Iterable[Event]:
        """All events."""
        ...

    def steps(self) -> list[StepEvent]:
        """The train steps that are done."""
        ...

    def evaluations(self) -> list[EvaluationEvent]:
        """The finished held-out evaluations."""
        ...

    def wait(self) -> JobView:
        """Wait until it ends."""
        ...


class RecipeClient(Protocol):
    """What a recipe needs to imitate demonstrations, such as `tinkergym.Client`."""

    def sft(self, data: SequenceTasks, **settings: Any) -> RecipeJob:
        """Start supervised fine-tuning."""
        ...


@dataclass(slots=True, kw_only=True)
class Recipe:
    """One run of a recipe.

    Example:
        >>> recipe = Recipe.from_command_line(__file__)
        >>> job = client.train("bandit/Bandit-v0", **recipe.settings("train"))
        >>> recipe.watch(job)
        >>> recipe.report(job)
    """

    name: str
    tables: Mapping[str, Any]
    """The settings file: a table for each stage."""
    out: Path
    """Folder for the result and the picture."""
    seed: int = 0
    short: bool = False
    """Use the settings of the table `short`: a few small steps, to test the setup."""
    control: bool = False
    """Permute the rewards within each step, so that nothing can be learned."""
    variant: str = ""
    """The table with further overrides, such as `swapped`."""
    settings_name: str = LAPTOP
    """The settings file, without its ending."""
    _control_applied: bool = False
    _begun: float = field(default_factory=time.perf_counter)

    @classmethod
    def from_command_line(cls, script: str, arguments: Sequence[str] | None = None) -> Self:
        """Parse the command line.

        It is `train.py [SETTINGS] [--seed N] [--short] [--control] [--variant NAME] [--out DIR]`.

        Args:
            script: The script's `__file__`; its folder is the recipe and holds the settings files.
            arguments: Used instead of the command line.

        Raises:
            InvalidRequestError: There are no such settings, no such variant or no short form, or these
                override a table that does not exist; the file is not TOML; no job can have the seed; or the
                result cannot be written to the folder.
        """
        folder = Path(script).resolve().parent
        there = sorted(file.stem for file in folder.glob("*.toml"))
        given = _parser(Path(script).name, folder, there).parse_args(arguments)
        file = folder / f"{given.settings}.toml" if given.settings in there else Path(given.settings)
        tables = _read(file, there)
        forms = [name for name, table in tables.items() if _is_form(table)]
        if given.variant and (given.variant not in forms or given.variant == SHORT):
            variants = ", ".join(sorted({*forms} - {SHORT}))
            raise InvalidRequestError(
                f"{file.name} has no table [{given.variant}.train] or the like",
                hint=f"its variants are {variants}" if variants else "it has no variants",
                field="--variant",
            )
        if given.short and SHORT not in forms:
            raise InvalidRequestError(
                f"{file.name} has no short form",
                hint=f"add a table [{SHORT}.train] with what a short run does differently",
                field="--short",
            )
        if not 0 <= given.seed < _SEEDS:
            raise InvalidRequestError(f"must be from 0 to 2**63 - 1, not {given.seed}", field="--seed")
        for form in filter(None, (given.variant, SHORT if given.short else "")):
            _check_overrides(file.name, tables, form)
        _create(given.out)
        return cls(
            name=folder.name,
            tables=tables,
            out=given.out,
            seed=given.seed,
            short=given.short,
            control=given.control,
            variant=given.variant,
            settings_name=file.stem,
        )

    def settings(self, stage: str, needs: Sequence[str] = ()) -> dict[str, Any]:
        """Return the settings of one stage, for the client's methods.

        Args:
            stage: A table of the file.
            needs: Settings without which the script cannot run.

        Raises:
            InvalidRequestError: The file has no such table, it lacks a setting, or it sets the seed.
        """
        if not isinstance(self.tables.get(stage), Mapping):
            raise InvalidRequestError(
                f"the settings of the recipe {self.name!r} have no table [{stage}]", field=stage
            )
        found = dict(self.tables[stage])
        for table in [name for name, used in ((self.variant, self.variant), (SHORT, self.short)) if used]:
            found = merged(found, self.tables.get(table, {}).get(stage, {}))
        if "seed" in found:
            raise InvalidRequestError(
                f"the table [{stage}] sets the seed, which the command line does",
                hint="remove it, and run with --seed",
                field=f"{stage}.seed",
            )
        self._require(stage, found, needs)
        found["seed"] = self.seed
        if self.control and stage == "train":
            self._control_applied = True
            found["shuffle_rewards"] = True
        return found

    def own_control(self) -> bool:
        """Return whether this is a control, for a script that makes its own instead of shuffling rewards.

        A script without a stage `train` has to ask, or `report` refuses the run.
        """
        self._control_applied = self._control_applied or self.control
        return self.control

    def imitate(
        self,
        client: RecipeClient,
        demonstrations: Callable[..., Iterable[Mapping[str, Any]]],
        own: Sequence[str] = (),
    ) -> dict[str, str]:
        """Train on demonstrations with the settings of `show`, unless these say `episodes = 0`.

        Args:
            client: Starts the job.
            demonstrations: Returns rows of messages, given the number of episodes.
            own: Names of further settings of `show` that are for `demonstrations`, as keywords.

        Returns:
            The settings with which another job begins with the result.

        Raises:
            InvalidRequestError: A setting of the demonstrations is missing, or `episodes` is not a number of
                them.
            JobFailedError: The job failed. The message has the reason.
        """
        show = self.settings("show", needs=["episodes"])
        episodes = show.pop("episodes")
        if isinstance(episodes, bool) or not isinstance(episodes, int) or episodes < 0:
            raise InvalidRequestError(f"must be an integer from 0, not {episodes!r}", field="show.episodes")
        if not episodes:
            return {}
        self._require("show", show, own)
        rows = demonstrations(episodes, **{name: show.pop(name) for name in own})
        job = client.sft(SequenceTasks(list(rows)), **show)
        self.watch(job)
        return {"initial_policy": job.id}

    def watch(self, job: RecipeJob) -> None:
        """Show a job until it ends.

        Raises:
            JobFailedError: It failed. The message has the reason.
        """
        with TrainingDisplay(job.id, job.spec) as display:
            display.watch(job.events())
        job.wait()

    def report(self, job: RecipeJob, *, metric: str | Sequence[str] = (), **facts: Any) -> Path:
        """Print and write the results of a job, and return the path of the result file.

        Args:
            job: A job that has ended.
            metric: A metric of its train steps whose curve is stored and drawn too, or several.
            **facts: Other results of the recipe; JSON values.

        Raises:
            InvalidRequestError: `--control` was given, but nothing in the script makes the run one.
            OSError: The result could not be written. It was printed.
        """
        if self.control and not self._control_applied:
            raise InvalidRequestError(
                f"--control had no effect on the recipe {self.name!r}, which used no settings [train]",
                hint="read them with settings('train'), or make a control where own_control() is true",
                field="--control",
            )
        steps = job.steps()
        rewards = reward_curves(steps)
        names = [metric] if isinstance(metric, str) else metric
        curves = {name: [(s.step, s.metrics[name]) for s in steps if name in s.metrics] for name in names}
        run = Run(
            recipe=self.name,
            seed=self.seed,
            control=self.control,
            variant=self.variant,
            seconds=round(time.perf_counter() - self._begun, 1),
            rewards=rewards.pop("", []),
            evaluations=_by_name(job.evaluations()),
            settings=self.settings_name,
            short=self.short,
            metrics=curves,
            facts=facts,
            seat_rewards=rewards,
        )
        kind = "control" if self.control else "seed"
        other = self.settings_name if self.settings_name != LAPTOP else ""
        stem = "-".join(filter(None, (other, SHORT * self.short, self.variant, kind, str(self.seed))))
        result = self.out / f"{stem}.json"
        text = json.dumps({"job": job.id, **run.as_json()}, indent=1)
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            result.write_text(text + "\n", encoding="utf-8")
        except OSError:
            sys.stdout.write(text + "\n")
            raise
        try:
            picture = draw([run], self.out / f"{stem}.png")
        except OSError as error:
            picture = f"no picture  {error}\n"
        self._print(run, result, picture)
        return result

    def _require(self, stage: str, found: Mapping[str, Any], names: Sequence[str]) -> None:
        for name in names:
            if name not in found:
                raise InvalidRequestError(
                    f"the recipe {self.name!r} needs a setting {name!r} in its table [{stage}]",
                    hint=f"add it as in {LAPTOP}.toml",
                    field=f"{stage}.{name}",
                )

    def _print(self, run: Run, result: Path, picture: str) -> None:
        console = Console(emoji=False, highlight=False)
        if run.control:
            console.print("control: its rewards teach nothing", markup=False)
        for agent, rewards in (run.seat_rewards or {"": run.rewards}).items():
            if agent:
                console.print(f"reward at the seat {agent}", markup=False)
            for line in curve([reward for _, reward in rewards]):
                console.print(line, markup=False)
        for name, done in run.evaluations.items():
            what = f"held-out episodes of {name}" if len(run.evaluations) > 1 else "held-out episodes"
            for step, mean, low, high in [*done[:1], *done[1:][-1:]]:
                interval = "" if low is None or high is None else f" [{low:+.3f}, {high:+.3f}]"
                console.print(f"{what}, step {step:4}: mean return {mean:+.3f}{interval}", markup=False)
        for name in [name for name, values in run.metrics.items() if not values]:
            console.print(f"{name}: no train step has this metric", markup=False)
        for name, value in run.facts.items():
            shown = str(value)
            shown = shown if len(shown) <= _LONGEST_FACT else "see the result"
            console.print(f"{name}: {shown}", markup=False)
        console.print(f"{picture}result      {result}   ({run.seconds:.0f} s)", markup=False, soft_wrap=True)


def _parser(script: str, folder: Path, there: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"examples/{folder.name}/{script}")
    parser.add_argument("settings", nargs="?", default=LAPTOP, help=f"{', '.join(there)}, or a .toml file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="a few small steps")
    parser.add_argument("--control", action="store_true", help="with rewards that teach nothing")
    parser.add_argument("--variant", metavar="NAME", default="", help="with a table of the settings added")
    parser.add_argument("--out", type=Path, default=Path("runs") / folder.name)
    return parser


def _create(folder: Path) -> None:
    """Create the folder of the result and try to write to it; the result comes only after the training."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidRequestError(
            f"the result could not be written to {str(folder)!r}: {error.strerror}",
            hint="name a folder that can be created or written to",
            field="--out",
        ) from error


def _check_overrides(file: str, tables: Mapping[str, Any], form: str) -> None:
    stages = {name for name, table in tables.items() if isinstance(table, Mapping)} - {form, SHORT}
    if unknown := sorted(set(tables[form]) - stages):
        raise InvalidRequestError(
            f"the table [{form}.{unknown[0]}] of {file} overrides no other",
            hint=f"its tables are {', '.join(sorted(stages))}",
            field=f"{form}.{unknown[0]}",
        )


def _is_form(table: object) -> bool:
    """Whether a table has tables of overrides for other tables only, as a variant does."""
    return isinstance(table, Mapping) and bool(table) and all(isinstance(t, Mapping) for t in table.values())


def _read(file: Path, there: Sequence[str]) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise InvalidRequestError(
            f"there is no settings file {str(file)!r}",
            hint=f"name a .toml file or one of {', '.join(there)}",
            code="missing_file",
        ) from error
    # Also bytes that are not UTF-8, and numbers with too many digits.
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{file} is not TOML: {error}", code="not_toml") from error


def _by_name(evaluations: Iterable[EvaluationEvent]) -> dict[str, list[Evaluated]]:
    found: dict[str, list[Evaluated]] = {}
    for done in evaluations:
        if done.mean is not None:
            found.setdefault(done.name, []).append((done.step, done.mean, done.low, done.high))
    return found
