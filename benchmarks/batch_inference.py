"""Batch inference: each row once, whatever is killed; its speed against the bare engine; its memory.

10,000 rows are sampled by `tinkergym generate`, whose process, gateway and pool worker are killed with -9 at
ten points; and by an inference job, under which gateway and pool are killed. The speed is compared with that
of a bare engine in this process, which gets the same requests at once, in alternation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

import tinkergym as tg
from backend.engines.protocol import BASE_POLICY
from backend.engines.transformers.transformers_engine import TransformersEngine
from benchmarks.bench_engine import NANO
from benchmarks.common import Figure, Service, paired_ratios, service, write_result
from benchmarks.determinism import kill_if_there
from tinkergym.datasets.prompts import prompt_rows
from tinkergym.inference.sampling_plan import SamplingPlan
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.sampling import Completion

ROWS = 10_000
SPEED_ROWS = 500
PAIRS = 3
MAX_TOKENS = 32
TEMPERATURE = 10.0
"""At 1, nano ends a row after two tokens, and the speed would be that of requests instead of sampling."""
KILLED_TOKENS = 8
"""Most tokens per row where processes are killed."""
VICTIMS = ("client", "pool worker", "gateway", "client", "pool worker") * 2
_VICTIMS_OF_A_JOB = ("pool worker", "gateway") * 2
_PAUSE_SECONDS = 0.05


def measure(rows: int = ROWS) -> list[Figure]:
    """Run with kills and without, and compare."""
    with (
        tempfile.TemporaryDirectory(prefix="tinkergym-batch-") as folder,
        service(timeout_seconds=300) as running,
    ):
        work = Path(folder)
        with tg.Client(running.url, running.api_key, patience_seconds=120) as client:
            figures, details = _speed(client, work)
            killed, kills = _with_kills(running, work, rows)
            figures += killed
            details["kills"] = kills
            figures.append(_job_with_kills(running, client, work, rows))
    return write_result("batch_inference", figures, details)


def _data(work: Path, rows: int) -> Path:
    file = work / f"{rows}.jsonl"
    with file.open("w") as out:
        for number in range(rows):
            out.write(json.dumps({"text": f"{number} and {number * 7 % 1000} make "}) + "\n")
    return file


def _speed(client: tg.Client, work: Path) -> tuple[list[Figure], dict[str, Any]]:
    """Compare the file and the job with the bare engine, in alternation."""
    data, policy = _data(work, SPEED_ROWS), client.policy("nano")
    engine = TransformersEngine(NANO)
    seconds: dict[str, list[float]] = {"bare": [], "file": [], "job": []}
    tokens: list[int] = []
    for run in range(PAIRS + 1):
        began = time.perf_counter()
        sampled = _bare(engine, policy, data, seed=run)
        bare = time.perf_counter() - began
        began = time.perf_counter()
        asked: dict[str, Any] = {"max_tokens": MAX_TOKENS, "temperature": TEMPERATURE, "seed": run}
        done = policy.generate(data, work / f"speed-{run}.jsonl", **asked)
        in_file = time.perf_counter() - began
        job = client.infer(policy, data, **asked)
        view = job.wait(progress=False)
        if run:  # The first one warms up.
            seconds["bare"].append(bare)
            seconds["file"].append(in_file)
            seconds["job"].append(view.used_seconds)
            tokens += [sampled, done.completion_tokens, view.used_tokens]
    engine.close()
    figures = []
    for name, how in (("file", "`policy.generate`"), ("job", "`client.infer`")):
        ratios = paired_ratios(seconds["bare"], seconds[name])
        middle = ratios[len(ratios) // 2]
        figures.append(
            Figure(
                what=f"{how}, {SPEED_ROWS:,} rows on nano, against the same requests at a bare engine",
                asked=">= 0.9 x",
                measured=f"{middle:.2f} x ({ratios[0]:.2f} to {ratios[-1]:.2f} in {PAIRS} pairs)",
                reached=middle >= 0.9,
            )
        )
    return figures, {"seconds": seconds, "sampled_tokens": tokens, "threads": torch.get_num_threads()}


def _bare(engine: TransformersEngine, policy: Any, data: Path, *, seed: int) -> int:
    """Render the rows, submit all requests at once, and decode; return how many tokens were sampled."""
    plan = SamplingPlan(
        run_id=f"bare-{seed}",
        policy=BASE_POLICY,
        policy_version=0,
        decoding=Decoding(max_turn_tokens=MAX_TOKENS, temperature=TEMPERATURE, seed=seed),
        n=1,
        stop_ids=policy.renderer.stop_ids,
        context_length=policy.renderer.context_length,
    )
    requests = [
        request
        for row in prompt_rows(str(data), policy.renderer)
        for request in plan.requests(row.number, row.token_ids)
    ]
    answers: list[Completion] = []
    finished = threading.Event()

    def deliver(some: Any) -> None:
        answers.extend(some)
        if len(answers) == len(requests):
            finished.set()

    engine.submit(requests, deliver)
    finished.wait()
    return sum(
        len(answer.token_ids) for answer in answers if policy.renderer.decode_answer(answer.token_ids) or 1
    )


def _with_kills(running: Service, work: Path, rows: int) -> tuple[list[Figure], list[str]]:
    """Let the command run to its end, killing one of the three each time it has done another part."""
    data, out, whole = _data(work, rows), work / "killed.jsonl", work / "whole.jsonl"
    peaks = [
        _undisturbed(running, _data(work, rows // 10), work / "tenth.jsonl"),
        _undisturbed(running, data, whole),
    ]
    kills: list[str] = []
    process = _command(running, data, out)
    for number, victim in enumerate(VICTIMS, start=1):
        _await_lines(out, rows * number // (len(VICTIMS) + 1), process)
        if victim == "client":
            process.kill()
            process.wait()
            process = _command(running, data, out)
        else:
            while not kill_if_there(running, victim):
                time.sleep(_PAUSE_SECONDS)
        kills.append(f"after {_lines(out)} rows: {victim}")
        print(kills[-1], flush=True)
    if process.wait() != 0:
        raise RuntimeError("tinkergym generate failed")
    found = [json.loads(line) for line in out.read_text().splitlines()]
    once = [line["row"] for line in found] == list(range(rows))
    same = sum(
        a == b for a, b in zip(out.read_bytes().splitlines(), whole.read_bytes().splitlines(), strict=False)
    )
    errors = sum("error" in line for line in found)
    growth = peaks[1] / peaks[0]
    return [
        Figure(
            what=f"`tinkergym generate`, {rows:,} rows, client, gateway and pool killed {len(VICTIMS)} times",
            asked="each row once",
            measured=f"{'each once' if once else 'not each once'}, in order; {errors} errors; "
            f"{same:,} of {rows:,} lines as in an undisturbed run",
            reached=once and not errors,
        ),
        Figure(
            what=f"largest memory of the command for {rows:,} rows, against {rows // 10:,} rows",
            asked="<= 1.1 x",
            measured=f"{growth:.2f} x ({peaks[1] >> 10} against {peaks[0] >> 10} MiB)",
            reached=growth <= 1.1,
        ),
    ], kills


def _job_with_kills(running: Service, client: tg.Client, work: Path, rows: int) -> Figure:
    job = client.infer("nano", str(_data(work, rows)), max_tokens=KILLED_TOKENS)
    for number, victim in enumerate(_VICTIMS_OF_A_JOB, start=1):
        wanted = job.spec.steps * number // (len(_VICTIMS_OF_A_JOB) + 1)
        while job.view().step < wanted:
            time.sleep(_PAUSE_SECONDS)
        while not kill_if_there(running, victim):
            time.sleep(_PAUSE_SECONDS)
        print(f"job after step {wanted}: {victim}", flush=True)
    view = job.wait(progress=False)
    found = [line["row"] for line in job.results()]
    once = found == list(range(rows))
    return Figure(
        what=f"`client.infer`, {rows:,} rows, gateway and pool killed {len(_VICTIMS_OF_A_JOB)} times",
        asked="each row once",
        measured=f"{'each once' if once else 'not each once'}, in order, in {view.attempt} attempts",
        reached=once,
    )


def _command(running: Service, data: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tinkergym.cli.main", "generate", "nano", "--data", str(data)]
    command += ["--out", str(out), "--max-tokens", str(KILLED_TOKENS), "--resume"]
    return subprocess.Popen(command, env=os.environ | running.environment, stdout=subprocess.DEVNULL)


def _undisturbed(running: Service, data: Path, out: Path) -> int:
    """Return the largest memory of the command, in KiB."""
    process = _command(running, data, out)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError("tinkergym generate failed")
    return usage.ru_maxrss


def _lines(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0


def _await_lines(out: Path, lines: int, process: subprocess.Popen[bytes]) -> None:
    while _lines(out) < lines:
        if process.poll() is not None:
            raise RuntimeError(f"tinkergym generate ended with {process.returncode}")
        time.sleep(_PAUSE_SECONDS)
