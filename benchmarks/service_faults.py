"""Faults that are not kills: a full disk, stopped processes, cut checkpoints, a wrong clock, many jobs.

Each fault happens while one small deterministic job trains. The job must end with the weights of an
undisturbed run and with all its events; what cannot be repaired must be named to the client. Mounting a small
disk needs root; without it, the faults of the disk are skipped, and the result says so.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
import time
import unittest.mock
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import psutil

import tinkergym as tg
from benchmarks.common import Figure, Service, service, write_result
from benchmarks.determinism import PARTS, kill, processes_by_kind
from benchmarks.mixed_kills import VICTIMS, faults_of_events, hashes_of_versions
from tinkergym.schema.events import Event, JobState

_FAULT_AT_STEP = 2
_STOP_SECONDS = 20.0
_FULL_SECONDS = 15.0
_DISK_BYTES = 400 * 2**20
_AFTER_TWO_CHECKPOINTS = 7
_WAITS = "blob store unavailable"
"""What a job says that waits for its files."""
_STREAMS, _GATEWAY_KILLS = 20, 3
_QUEUED_JOBS = 200
_PATIENCE_SECONDS = 300.0
_START_SECONDS = 280.0


@dataclass(frozen=True, slots=True)
class Run:
    """A job that was disturbed."""

    versions: str
    """All versions' weights, hashed; see `mixed_kills`."""
    wrong: tuple[str, ...]
    """What was lost, doubled or named badly."""
    seen: str = ""
    """What the client was shown meanwhile."""


class MissingMeansError(Exception):
    """This machine cannot cause the fault."""


def measure(names: tuple[str, ...] = ()) -> list[Figure]:
    """Run the job undisturbed, then once for each fault; compare."""
    figures: list[Figure] = []
    details: dict[str, object] = {}
    with _service() as running:
        clean = _run(running, lambda job: "")
        print(clean, flush=True)
        for name, fault in IN_ONE_SERVICE.items():
            if not names or name in names:
                figures.append(_figure(name, lambda fault=fault: fault(running), clean, details))
    for name, fault in IN_THEIR_OWN.items():
        if not names or name in names:
            figures.append(_figure(name, fault, clean, details))
    return write_result("service_faults", figures, details)


def _figure(name: str, fault: Callable[[], Run], clean: Run, details: dict[str, object]) -> Figure:
    began = time.monotonic()
    try:
        run = fault()
    except MissingMeansError as missing:
        print(name, "skipped", missing, flush=True)
        return Figure(what=name, asked="-", measured=f"skipped: {missing}", reached=True)
    same = run.versions == clean.versions
    details[name] = {"wrong": run.wrong, "seen": run.seen, "seconds": round(time.monotonic() - began)}
    print(name, same, details[name], flush=True)
    return Figure(
        what=name,
        asked="the weights of the undisturbed run; nothing lost, nothing doubled",
        measured=f"{'the same' if same else 'other'} weights; {len(run.wrong)} faults",
        reached=same and not run.wrong,
    )


@contextlib.contextmanager
def _service(home: Path | None = None, *settings: str) -> Iterator[Service]:
    with service(home, *settings, timeout_seconds=_START_SECONDS) as running:
        yield running


def _client(running: Service) -> tg.Client:
    return tg.Client(running.url, running.api_key, patience_seconds=_PATIENCE_SECONDS)


def _run(running: Service, fault: Callable[[tg.Job], str], at_step: int = _FAULT_AT_STEP) -> Run:
    """Train, let the fault happen after a step, and wait for the end."""
    with _client(running) as client:
        job = _train(client)
        _wait_for_step(job, at_step)
        return _ended(running, job, fault(job))


def _train(client: tg.Client) -> tg.Job:
    return client.train(
        "board/TicTacToeVs-v0",
        steps=8,
        seed=7,
        checkpoint_every=3,
        deterministic=True,
        algorithm=tg.GRPO(group_size=4, groups_per_step=4, learning_rate=3e-3),
        evaluate=tg.EvaluateEvery(3, episodes=8),
        sampling=tg.Sampling(max_turn_tokens=8),
    )


def _wait_for_step(job: tg.Job, step: int) -> None:
    for event in job.events():
        if event.body.type == "step" and event.body.step == step:
            return


def _ended(running: Service, job: tg.Job, seen: str = "") -> Run:
    """Wait for a job's end and judge it."""
    for _ in job.events():
        pass
    view = job.view()
    wrong = faults_of_events(running.home, job.id)
    if view.state is not JobState.COMPLETED:
        wrong.append(f"{view.state}: {view.reason}")
    return Run(hashes_of_versions(running.home, job.id), tuple(wrong), seen)


# --- the disk ---


@dataclass(frozen=True, slots=True)
class _Disk:
    """A small ext4 disk in a file."""

    image: Path
    folder: Path

    def mount(self) -> None:
        options = ["-o", "loop,errors=remount-ro"]
        subprocess.run(["mount", *options, str(self.image), str(self.folder)], check=True)

    def fail(self) -> None:
        """Let the file system find an error: it becomes read-only, and stays so until it is repaired."""
        device = Path(_output("findmnt", "-no", "SOURCE", str(self.folder))).name
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")

    def repair(self) -> None:
        """Unmount, check and mount again."""
        subprocess.run(["umount", str(self.folder)], check=True)
        subprocess.run(["fsck.ext4", "-p", str(self.image)], check=False, capture_output=True)
        self.mount()


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def _small_disk() -> Iterator[_Disk]:
    """A disk of `_DISK_BYTES`, mounted."""
    with tempfile.TemporaryDirectory(prefix="tinkergym-disk-") as folder:
        disk = _Disk(Path(folder, "image"), Path(folder, "mounted"))
        disk.folder.mkdir()
        with disk.image.open("wb") as image:
            image.truncate(_DISK_BYTES)
        try:
            _output("mkfs.ext4", "-q", str(disk.image))
            disk.mount()
        except (OSError, subprocess.CalledProcessError) as error:
            raise MissingMeansError("a small disk needs root, ext4 and loop devices") from error
        try:
            disk.folder.chmod(0o700)
            yield disk
        finally:
            subprocess.run(["umount", "--lazy", str(disk.folder)], check=True)


def disk_full() -> Run:
    """Fill the disk of the data folder for a while."""
    with _small_disk() as disk, _service(disk.folder) as running:

        def fill(job: tg.Job) -> str:
            filler = disk.folder / "fill"
            with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(2**12)):
                    pass
            try:
                return _look_at(running, job, _FULL_SECONDS)
            finally:
                filler.unlink()

        return _run(running, fill)


def disk_read_only() -> Run:
    """Let the data folder's file system become read-only; repair it, and start the service again."""
    with _small_disk() as disk:
        with _service(disk.folder) as running, _client(running) as client:
            job = _train(client)
            _wait_for_step(job, _FAULT_AT_STEP)
            disk.fail()
            seen = _look_at(running, job, _FULL_SECONDS)
        disk.repair()
        with _service(disk.folder) as running, _client(running) as client:
            again = client.job(job.id)
            return _ended(running, again, seen)


def _look_at(running: Service, job: tg.Job, seconds: float) -> str:
    """Wait; return what the service says of itself and of a job, and how it answers a new one."""
    time.sleep(seconds)
    headers = {"Authorization": f"Bearer {running.api_key}"}
    spec = {"environment": {"id": "bandit/Bandit-v0"}, "steps": 1, "rollout": "client"}
    with httpx.Client(base_url=f"{running.url}/v1", headers=headers, timeout=30) as http:
        health, view = http.get("/health").json(), http.get(f"/jobs/{job.id}").json()
        refused = http.post("/jobs", json=spec)
    return (
        f"health: {health['status']}, waiting for {health['waiting_for']}; job: {view['state']}, step "
        f"{view['step']}, {view['reason']!r}; a new job: {refused.status_code} {refused.text}"
    )


# --- stopped processes ---


def _stopped(part: str) -> Callable[[Service], Run]:
    def fault(running: Service) -> Run:
        def stop(job: tg.Job) -> str:
            stopped = []
            for process in processes_by_kind(running, VICTIMS).get(part, []):
                with contextlib.suppress(psutil.Error):
                    process.suspend()
                    stopped.append(process)
            assert stopped, f"no {part}"
            time.sleep(_STOP_SECONDS)
            for process in stopped:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()
            left = sum(process.is_running() for process in stopped)
            return f"{left} of {len(stopped)} are still there after {_STOP_SECONDS:.0f} s"

        return _run(running, stop)

    return fault


# --- checkpoints ---


def _cut_newest(running: Service) -> Run:
    """Cut the files of the newest checkpoint: the job goes on from the one before, with a warning."""

    def act(job: tg.Job) -> str:
        newest = job.checkpoints()[-1]
        for file in Path(newest.path).iterdir():
            os.truncate(file, file.stat().st_size // 2)
        kill(running, "pool worker")
        return f"cut: step {newest.step}"

    run = _run(running, act, at_step=_AFTER_TWO_CHECKPOINTS)
    warned = {event.body.name for event in _events(running) if event.body.type == "warning"}
    named = () if "checkpoint_damaged" in warned else ("no warning names the damage",)
    return replace(run, wrong=run.wrong + named)


def _missing(how_many: int) -> Callable[[Service], Run]:
    """Take the newest checkpoints away until the job says that it waits for them, then put them back."""

    def fault(running: Service) -> Run:
        def act(job: tg.Job) -> str:
            folders = [Path(one.path) for one in job.checkpoints()[-how_many:]]
            away = Path(tempfile.mkdtemp(dir=running.home))
            for folder in folders:
                folder.rename(away / folder.name)
            kill(running, "pool worker")
            reason = _reason_of_waiting(job).replace(f"{running.home}/", "")
            for folder in folders:
                (away / folder.name).rename(folder)
            return f"{len(folders)} missing: {reason}"

        run = _run(running, act, at_step=_AFTER_TWO_CHECKPOINTS)
        waited = () if _WAITS in run.seen else ("the job did not wait for its checkpoints",)
        return replace(run, wrong=run.wrong + waited)

    return fault


def _reason_of_waiting(job: tg.Job) -> str:
    """Return what the job waits for; or why it does not, if it has ended or says nothing for long."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        view = job.view()
        if view.state.final or _WAITS in view.reason:
            return view.reason
        time.sleep(1)
    return "nothing was said"


def _events(running: Service) -> list[Event]:
    """Return all events of the newest job."""
    with _client(running) as client:
        return list(client.job(client.jobs()[0].job_id).events())


# --- clients ---


def streams_through_kills(running: Service) -> Run:
    """Follow a job with several streams while its gateway is killed."""
    streams: list[list[int]] = [[] for _ in range(_STREAMS)]

    def follow(job: tg.Job) -> str:
        def read(seen: list[int]) -> None:
            with _client(running) as client:
                seen.extend(event.seq for event in client.job(job.id).events())

        threads = [threading.Thread(target=read, args=(seen,)) for seen in streams]
        for thread in threads:
            thread.start()
        for step in range(_FAULT_AT_STEP + 1, _FAULT_AT_STEP + 1 + _GATEWAY_KILLS):
            _wait_for_step(job, step)
            kill(running, "gateway")
        for thread in threads:
            thread.join(_PATIENCE_SECONDS)
        return f"{_GATEWAY_KILLS} kills, {_STREAMS} streams of {len(streams[0])} events"

    run = _run(running, follow)
    broken = sum(seen != list(range(1, len(streams[0]) + 1)) for seen in streams)
    return replace(run, wrong=(*run.wrong, f"{broken} streams lack events") if broken else run.wrong)


def many_queued_jobs(running: Service) -> Run:
    """Queue jobs of another tenant while the job trains, then cancel them."""
    key = running.key_of("eve")

    def queue(job: tg.Job) -> str:
        waits: list[float] = []
        spec = {"environment": {"id": "bandit/Bandit-v0"}, "steps": 1, "rollout": "client"}
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=f"{running.url}/v1", headers=headers, timeout=60) as http:
            began = time.monotonic()
            for _ in range(_QUEUED_JOBS):
                http.post("/jobs", json=spec).raise_for_status()
            queued = time.monotonic() - began
            for _ in range(100):
                asked = time.monotonic()
                http.get("/health").raise_for_status()
                waits.append(time.monotonic() - asked)
        with tg.Client(running.url, key, patience_seconds=_PATIENCE_SECONDS) as client:
            jobs = client.jobs(limit=_QUEUED_JOBS)
            for one in jobs:
                client.job(one.job_id).cancel()
            left = [one for one in jobs if not client.job(one.job_id).view().state.final]
        return (
            f"{_QUEUED_JOBS} jobs queued in {queued:.1f} s, {len(jobs)} listed, health p99 "
            f"{sorted(waits)[98] * 1000:.0f} ms, {len(left)} not cancelled"
        )

    return _run(running, queue)


# --- the clock ---


_CLOCK = """
import time

def moved(true, unit):
    def now():
        with open({offset!r}) as file:
            return true() + int(file.read()) * unit
    return now

time.time, time.time_ns = moved(time.time, 1), moved(time.time_ns, 10**9)
"""
"""A `sitecustomize` that moves the clock of all Python code. libfaketime would move that of Ray too, but
not the kernel's timers, and Python cannot sleep under it."""


@contextlib.contextmanager
def _settable_clock() -> Iterator[Callable[[int], None]]:
    """Let a service that starts here see a clock that can be set, by seconds from the true time."""
    with tempfile.TemporaryDirectory(prefix="tinkergym-clock-") as folder:
        offset = Path(folder, "offset")

        def set_to(seconds: int) -> None:
            draft = offset.with_suffix(".new")
            draft.write_text(str(seconds))
            draft.replace(offset)

        set_to(0)
        Path(folder, "sitecustomize.py").write_text(_CLOCK.format(offset=str(offset)))
        with unittest.mock.patch.dict(os.environ, PYTHONPATH=folder):
            yield set_to


def clock_set() -> Run:
    """Set the clock an hour ahead, and then two hours back."""
    with _settable_clock() as set_to, _service() as running:

        def set_twice(job: tg.Job) -> str:
            set_to(3600)
            _wait_for_step(job, _FAULT_AT_STEP + 2)
            ahead = httpx.get(f"{running.url}/v1/health", timeout=30).json()["status"]
            set_to(-3600)
            return f"health while an hour ahead: {ahead}"

        return _run(running, set_twice)


IN_ONE_SERVICE: Mapping[str, Callable[[Service], Run]] = {
    f"{part} stopped for {_STOP_SECONDS:.0f} s": _stopped(part) for part in (*PARTS, "raylet", "GCS")
} | {
    "newest checkpoint cut": _cut_newest,
    "newest checkpoint missing until the job waits for it": _missing(1),
    "all checkpoints missing until the job waits for them": _missing(9),
    "event streams through gateway kills": streams_through_kills,
    f"{_QUEUED_JOBS} queued jobs of another tenant": many_queued_jobs,
}
IN_THEIR_OWN: Mapping[str, Callable[[], Run]] = {
    "disk full": disk_full,
    "disk read-only": disk_read_only,
    "clock set an hour ahead, then two back": clock_set,
}
