"""`tinkergym replay`: show episodes of a file or a job, token by token or as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tinkergym.agent.renderer import Renderer
from tinkergym.cli.console import out
from tinkergym.cli.json_output import AsJsonLines, emit
from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.records import EpisodeRecord, read_records
from tinkergym.remote.client import Client
from tinkergym.remote.model_files import find_bundle
from tinkergym.schema.ids import EpisodeId
from tinkergym.trajectory.trajectory import ONLY_AGENT, Segment, Trajectory

STYLES = {"environment": "cyan", "sampled": "bold green", "masked": "yellow"}
"""By kind: text from the environment, sampled and trained tokens, sampled but untrained tokens."""
_MOST_IDS = 400
_UNFINISHED = "\ufffd"


def replay(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE|EPISODE",
            help="A file written by `tinkergym eval --out`, or the id of a job's episode, JOB_ID:STEP:INDEX.",
        ),
    ],
    *,
    episode: Annotated[
        int | None, typer.Option(metavar="N", help="Only this one, counted from 0. (default: all)", min=0)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model whose tokenizer decodes the ids: a model of the service, or a directory."
        ),
    ] = None,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="List the sampled tokens with their logprobs, in nats.")
    ] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Only episodes that failed.")] = False,
    as_json: AsJsonLines = False,
) -> None:
    """Show stored episodes: prompts, completions, rewards, and stop reasons.

    With --model the exact tokens are shown: in colour on a terminal (sampled green, environment cyan, sampled
    but not trained on yellow), elsewhere with labels. Without it the text of the turns is shown, and with
    --logprobs the token ids.

    A job's episode of a game has a record for each seat.

    Example: tinkergym replay run.jsonl --episode 0 --model nano --logprobs
    """
    records = _records(source)
    numbered = [
        (number, record)
        for number, record in enumerate(records)
        if (episode is None or number == episode) and not (failed and record.trajectory.completed)
    ]
    if episode is not None and episode >= len(records):
        raise InvalidRequestError(
            f"{source} has no episode {episode}", hint=f"0 to {len(records) - 1}", field="--episode"
        )
    renderer = None
    if model is not None:
        renderer = Renderer.from_bundle(find_bundle(model))
    for number, record in numbered:
        if as_json:
            emit(_document(number, record, renderer))
            continue
        _show(number, record, renderer, logprobs=logprobs)
    if not numbered and not as_json:
        out.print("no such episodes")


def _records(source: str) -> list[EpisodeRecord]:
    found = EpisodeId.find(source)
    if found is None:
        return read_records(Path(source)).episodes
    with Client() as client:
        view = client.api.episode(found.job.job_id, source)
    return [
        EpisodeRecord(episode_id=source, environment=view.environment, seed=one.seed, trajectory=one)
        for one in view.episode.trajectories
    ]


def _document(number: int, record: EpisodeRecord, renderer: Renderer | None) -> dict[str, Any]:
    document = {"number": number, **record.model_dump(mode="json")}
    if renderer is not None:
        document["segments"] = [
            [
                {"kind": kind, "text": text}
                for kind, text in _pieces(segment.token_ids, _kinds(record.trajectory, index), renderer)
            ]
            for index, segment in enumerate(record.trajectory.segments)
        ]
    return document


def _show(number: int, record: EpisodeRecord, renderer: Renderer | None, *, logprobs: bool) -> None:
    trajectory = record.trajectory
    seat = "" if trajectory.agent == ONLY_AGENT else f", {trajectory.agent}"
    out.rule(
        f"episode {number}: {record.environment}, seed {record.seed}, sample {record.sample}{seat}",
        style="dim",
    )
    if renderer is not None and trajectory.segments:
        for index, segment in enumerate(trajectory.segments):
            if len(trajectory.segments) > 1:
                print_line(f"segment {index}", "dim")
            _show_segment(segment, _kinds(trajectory, index), renderer)
    else:
        _show_text(trajectory)
    if logprobs:
        _show_logprobs(trajectory, renderer)
    for turn_number, turn in enumerate(trajectory.turns):
        metrics = "".join(f", {name} {value:g}" for name, value in turn.metrics.items())
        tokens = f", {turn.end - turn.start} tokens" if turn.end else ""
        cut = ", cut off" if turn.finish_reason == "length" else ""
        print_line(f"turn {turn_number}: reward {turn.reward:+g}{tokens}{cut}{metrics}", "dim")
    print_line(f"return {trajectory.episode_return:+g}, {trajectory.stop_reason.value}", "bold")
    if trajectory.error:
        print_line(trajectory.error.rstrip(), "red")
    out.print()


def _show_segment(segment: Segment, kinds: Sequence[str], renderer: Renderer) -> None:
    pieces = list(_pieces(segment.token_ids, kinds, renderer))
    if out.is_terminal:
        text = Text()
        for kind, piece in pieces:
            text.append(_safe(piece), style=STYLES[kind])
        out.print(text, soft_wrap=True)
        return
    for kind, group in groupby(pieces, key=lambda pair: pair[0]):
        print_line(f"{kind}:", "")
        for line in "".join(piece for _, piece in group).split("\n"):
            print_line(f"  {line}", "")


def _show_text(trajectory: Trajectory) -> None:
    for role, text in trajectory.transcript:
        kind = "sampled" if role == "assistant" else "environment"
        print_line(f"{kind}:", STYLES[kind])
        for line in text.split("\n"):
            print_line(f"  {line}", "")


def _show_logprobs(trajectory: Trajectory, renderer: Renderer | None) -> None:
    for index, segment in enumerate(trajectory.segments):
        if renderer is None:
            shown = segment.token_ids[:_MOST_IDS]
            more = (
                f" and {len(segment.token_ids) - _MOST_IDS} more"
                if len(segment.token_ids) > _MOST_IDS
                else ""
            )
            print_line(f"ids of segment {index}: {' '.join(map(str, shown))}{more}", "dim")
        for place, (token, logprob) in enumerate(
            zip(segment.token_ids, segment.sampling_logprobs, strict=True)
        ):
            if logprob is not None:
                text = repr(renderer.decode([token])) if renderer is not None else ""
                print_line(f"  {index}:{place:<5} {token:>7} {logprob:8.3f} {text}".rstrip(), "")


def _kinds(trajectory: Trajectory, index: int) -> list[str]:
    segment = trajectory.segments[index]
    kinds = ["sampled" if mask else "environment" for mask in segment.loss_mask]
    for turn in trajectory.turns:
        if turn.segment == index:
            for place in range(turn.start, min(turn.end, len(kinds))):
                if not segment.loss_mask[place]:
                    kinds[place] = "masked"
    return kinds


def _pieces(token_ids: Sequence[int], kinds: Sequence[str], renderer: Renderer) -> Iterator[tuple[str, str]]:
    """Yield (kind, text). Tokens that only together form a character are yielded together."""
    waiting: list[int] = []
    for place, (token, kind) in enumerate(zip(token_ids, kinds, strict=True)):
        waiting.append(token)
        text = renderer.decode(waiting)
        ends = place + 1 == len(kinds) or kinds[place + 1] != kind
        if ends or len(waiting) >= 4 or not text.endswith(_UNFINISHED):
            yield kind, text
            waiting = []


def print_line(text: str, style: str) -> None:
    """Print what a policy or an environment said."""
    out.print(_safe(text), style=style, markup=False, highlight=False, soft_wrap=True)


def _safe(text: str) -> str:
    # The policy's text must not control the terminal.
    return "".join(char if char == "\n" or char.isprintable() else f"\\x{ord(char):02x}" for char in text)
