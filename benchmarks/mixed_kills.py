"""All kinds of jobs at once while random processes are killed with -9; the bits of an undisturbed run.

Seven jobs run together: RL with an evaluation on the way, two policies of one game, images, SFT, preference,
distillation, and an own loop. They repeat in rounds until 60 processes were killed, at random moments, so
that kills also meet recoveries. Each round must end with every version's weights as in the first, undisturbed
round, with all events and one end each, and with certificates that verify.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

import tinkergym as tg
from benchmarks.common import Figure, Service, service, write_result
from benchmarks.determinism import PARTS, processes_by_kind
from tinkergym.certificates import verify
from tinkergym.schema.events import JobState
from tinkergym.schema.ids import PolicyRef
from tinkergym.tasks import SequenceTasks

KILLS = int(os.environ.get("TINKERGYM_BENCHMARK_KILLS", "60"))
GAP_SECONDS = 2.5, 12.0
_PATIENCE_SECONDS = 300.0
ROUND_SECONDS = 900.0
_LOOK_SECONDS = 0.5
_IMPATIENCE = 0.1
"""How often another is killed instead of one that is not there: perhaps none of its kind ever is."""
_SEED = 7
_OWN_UPDATES = 8

VICTIMS: Mapping[str, Callable[[list[str]], bool]] = {
    **PARTS,
    "raylet": lambda words: bool(words) and words[0].endswith("/raylet/raylet"),
    "GCS": lambda words: bool(words) and words[0].endswith("/gcs_server"),
    "Ray's agents": lambda words: bool(words) and words[0] in {"ray::DashboardAgent", "ray::RuntimeEnvAgent"},
    "guardian": lambda words: "backend.processes.guardian" in words,
}


def measure() -> list[Figure]:
    """Run one round undisturbed, then rounds with kills; compare."""
    kills: Counter[str] = Counter()
    drawn = random.Random(_SEED)
    rounds: list[dict[str, str]] = []
    wrong: list[str] = []
    with service() as running, tg.Client(running.url, running.api_key, patience_seconds=300) as client:
        clean = round_of(running, client, lambda: None, wrong)
        print(clean, flush=True)
        while kills.total() < KILLS:
            rounds.append(round_of(running, client, lambda: strike(running, drawn, kills), wrong))
            unequal = [name for name, found in rounds[-1].items() if found != clean[name]]
            print(f"{kills.total()} kills, unequal: {unequal}, wrong: {wrong}", flush=True)
        orphans = running.process.pid
    same = sum(one[name] == clean[name] for one in rounds for name in clean)
    figure = Figure(
        what=f"{len(clean)} kinds of jobs at once, {kills.total()} kills of {len(kills)} kinds of processes",
        asked="every version's weights as undisturbed; no event or step lost, one end each",
        measured=f"{same} of {len(rounds) * len(clean)} jobs equal in "
        f"{len(rounds)} round{'s' * (len(rounds) != 1)}; {len(wrong)} faults",
        reached=same == len(rounds) * len(clean) and not wrong and not psutil.pid_exists(orphans),
    )
    return write_result(
        "mixed_kills", [figure], {"kills": dict(kills), "rounds": [clean, *rounds], "wrong": wrong}
    )


def strike(
    running: Service, drawn: random.Random, kills: Counter[str], ended: Callable[[], bool] | None = None
) -> None:
    """Wait a random while, and kill one process of the kinds that were killed least, unless all has `ended`.

    If there is none at the moment, mostly nothing is killed: a pool only comes up when all others are left
    alone.
    """
    time.sleep(drawn.uniform(*GAP_SECONDS))
    if kills.total() >= KILLS if ended is None else ended():
        return
    found = processes_by_kind(running, VICTIMS)
    turn = drawn_kind(found, VICTIMS, drawn, kills)
    if turn is None:
        return
    try:
        os.kill(drawn.choice(sorted(process.pid for process in found[turn])), signal.SIGKILL)
    except ProcessLookupError:
        return
    kills[turn] += 1
    print(f"killed: {turn}", flush=True)


def drawn_kind(
    found: Collection[str], kinds: Collection[str], drawn: random.Random, kills: Counter[str]
) -> str | None:
    """Return which kind to kill of those that were `found`; None to wait for one that was killed less."""
    least = min(kills[kind] for kind in kinds)
    candidates = sorted(kind for kind in found if kills[kind] <= least + 1)
    if not candidates and found and drawn.random() < _IMPATIENCE:
        candidates = sorted(found)
    return drawn.choice(candidates) if candidates else None


def round_of(
    running: Service, client: tg.Client, strike: Callable[[], None], wrong: list[str]
) -> dict[str, str]:
    """Run all jobs, striking meanwhile; return by job the hash of all its versions' weights."""
    jobs = _start(client)
    own: dict[str, str] = {}
    thread = threading.Thread(target=lambda: own.update(_own_loop(running)), daemon=True)
    thread.start()
    ends_at = time.monotonic() + ROUND_SECONDS
    while time.monotonic() < ends_at:
        if not thread.is_alive() and all(job.view().state.final for job in jobs.values()):
            break
        strike()
        time.sleep(_LOOK_SECONDS)
    for name, job in jobs.items():
        view = job.view()
        if view.state is not JobState.COMPLETED:
            wrong.append(f"{name} {job.id}: {view.state}: {view.reason}")
        wrong.extend(f"{name} {job.id}: {fault}" for fault in faults_of_events(running.home, job.id))
        wrong.extend(f"{name} {job.id}: {fault}" for fault in faults_of_certificate(job, running.home))
    if not own:
        wrong.append("the own loop did not end")
    else:
        looped = client.job(own["job"])
        wrong.extend(
            f"own loop {looped.id}: {fault}" for fault in faults_of_certificate(looped, running.home)
        )
        looped.cancel()  # or it would keep its place at the model, and the fifth round would wait for one
    return {name: hashes_of_versions(running.home, job.id) for name, job in jobs.items()} | {
        "own loop": own.get("sha256", "")
    }


def _start(client: tg.Client) -> dict[str, tg.Job]:
    played: dict[str, Any] = {"deterministic": True, "sampling": tg.Sampling(max_turn_tokens=8)}
    groups = tg.GRPO(group_size=4, groups_per_step=4, learning_rate=3e-3)
    rows = [
        {"prompt": f"Count to {n}.", "completion": " ".join(map(str, range(n + 1)))} for n in range(1, 33)
    ]
    pairs = [{"prompt": row["prompt"], "chosen": row["completion"], "rejected": "no"} for row in rows]
    both = {"x": tg.Train(), "o": tg.Train(adapter=tg.LoRA(rank=4))}
    teacher = client.sft(SequenceTasks(rows), steps=6, batch_size=8, seed=1)
    teacher.wait(progress=False)
    return {
        "rl": client.train(
            "board/TicTacToeVs-v0",
            steps=8,
            seed=7,
            checkpoint_every=3,
            algorithm=groups,
            evaluate=tg.EvaluateEvery(3, episodes=8),
            **played,
        ),
        "two policies": client.train(
            "board/TicTacToe-v0", steps=5, seed=3, checkpoint_every=2, algorithm=groups, agents=both, **played
        ),
        "images": client.train(
            "geometry/Area-v0",
            model="nano-vl",
            steps=4,
            seed=5,
            checkpoint_every=2,
            algorithm=groups,
            **played,
        ),
        "sft": client.sft(SequenceTasks(rows), steps=30, batch_size=8, seed=4, checkpoint_every=7),
        "preference": client.preference(
            SequenceTasks(pairs), steps=12, batch_size=8, seed=4, checkpoint_every=5
        ),
        "distillation": client.distill(
            "board/TicTacToeVs-v0",
            teacher=teacher.id,
            steps=5,
            seed=9,
            checkpoint_every=2,
            episodes_per_step=16,
            **played,
        ),
    }


def _own_loop(running: Service) -> dict[str, str]:
    """Train a policy by calls on what it samples; return the hash of its last checkpoint."""
    with tg.Client(running.url, running.api_key, patience_seconds=300) as client:
        with client.create_policy(seed=3, checkpoint_every=7) as policy:
            saved = ""
            for update in range(_OWN_UPDATES):
                policy.publish().result()
                prompts = [policy.prompt_ids(f"Say {update + n}.") for n in range(4)]
                sampled = policy.sample_many(prompts, n=2, max_tokens=8, deterministic=True)
                learned = [
                    {
                        "token_ids": prompt + one.token_ids,
                        "loss_mask": [False] * len(prompt) + [True] * len(one.token_ids),
                        "sampling_logprobs": [None] * len(prompt) + one.sampling_logprobs,
                        "advantage": advantage,
                    }
                    for prompt, pair in zip(prompts, sampled, strict=True)
                    for one, advantage in zip(pair, (1.0, -1.0), strict=True)
                ]
                policy.forward_backward(learned, "ppo").result()
                policy.optim_step(learning_rate=1e-2).result()
                saved = policy.save().result()
            job_id, version = policy.job_id, PolicyRef.parse(saved).version
        found = client.job(job_id).checkpoints()
        sha256 = next(one.sha256 for one in found if one.policy_version == version)
        return {"sha256": sha256, "job": job_id}


def _query(home: Path, sql: str, job_id: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{home}/tinkergym.sqlite3?mode=ro", uri=True, timeout=20)) as database:
        return database.execute(sql, (job_id,)).fetchall()


def hashes_of_versions(home: Path, job_id: str) -> str:
    """Return each agent's versions with the hashes of their weights, as one text."""
    rows = _query(
        home,
        "select jp.agent, v.version, substr(v.weights_sha256, 1, 12) from job_policies jp "
        "join versions v on v.policy_id = jp.policy_id where jp.job_id = ? order by 1, 2",
        job_id,
    )
    return " ".join(f"{agent}@{version}={sha256}" for agent, version, sha256 in rows)


def faults_of_certificate(job: tg.Job, home: Path) -> list[str]:
    """Return what contradicts itself in a run's bundle, and the checks that do not hold."""
    bundle = job.certificate(home / "bundles", bundle=True).bundle
    assert bundle is not None
    found = verify(bundle)
    # An own loop says itself when it is complete, and need not sample what it repeats after a kill.
    fine = {"holds", "not_shown"} if job.view().spec.by_calls else {"holds"}
    bad = [one for one in found.certificate.checks if one.verdict not in fine]
    return [*found.problems, *(f"{one.name} {one.verdict}: {one.text}" for one in bad)]


def faults_of_events(home: Path, job_id: str) -> list[str]:
    """Return what of a job's events is lost or doubled."""
    events = _query(home, "select seq, body from events where job_id = ? order by seq", job_id)
    return faults_in([(seq, json.loads(body)) for seq, body in events])


def faults_in(events: Sequence[tuple[int, Mapping[str, Any]]]) -> list[str]:
    """Return what is lost or doubled among a job's events: their numbers, and what they say."""
    bodies = [body for _, body in events]
    states = [body["state"] for body in bodies if body["type"] == "state"]
    steps = {body["step"] for body in bodies if body["type"] == "step"}
    return [
        fault
        for fault, found in {
            "events are not contiguous": [seq for seq, _ in events] != list(range(1, len(events) + 1)),
            "not one end": sum(JobState(state).final for state in states) != 1,
            "steps are missing": steps != set(range(1, len(steps) + 1)),
        }.items()
        if found
    ]
