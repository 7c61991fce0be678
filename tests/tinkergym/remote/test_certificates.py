"""Bundles of finished and of running jobs, and what is found when one of their files is another."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

import pytest

from tinkergym.certificates import verify
from tinkergym.certificates.bundle import writing_bundle
from tinkergym.remote.certificates import known_to
from tinkergym.schema.algorithms import GRPO
from tinkergym.schema.certificate import (
    CheckpointFacts,
    EpisodeFate,
    EventsFacts,
    PublishFacts,
    RunFacts,
    StepFacts,
    StepLedger,
)
from tinkergym.schema.events import CheckpointView, Event, JobState, StateEvent
from tinkergym.schema.job_spec import EnvironmentRef, JobSpec
from tinkergym.schema.jobs import JobView
from tinkergym.testing.episodes import stored_record
from tinkergym.trajectory.digests import EMPTY_CHAIN, chained

WEIGHTS, MANIFEST = (
    f"checkpoints/step-000001/{name}" for name in ("adapter_model.safetensors", "manifest.json")
)


def sha256(body):
    return hashlib.sha256(body).hexdigest()


def fate(line, **settings):
    return EpisodeFate(episode_id=json.loads(line)["episode_id"], sha256=sha256(line), **settings)


class Run:
    """A job after its first step, and what its service keeps of it."""

    def __init__(self, *, state=JobState.RUNNING, in_progress=()):
        self.episodes = [stored_record(n, 1.0) for n in range(4)]
        fates = [fate(line, fate="trained") for line in self.episodes]
        self.ledger = StepLedger(step=1, attempt=1, episodes=fates).model_dump_json().encode()
        self.event = Event(seq=1, job_id="job-1", time=0.0, body=StateEvent(state=JobState.RUNNING))
        self.files = {"adapter_model.safetensors": b"weights"}
        weights = sha256(self.files["adapter_model.safetensors"])
        named = {name: {"sha256": sha256(body)} for name, body in self.files.items()}
        self.files["manifest.json"] = json.dumps(
            {"files": named, "weights_sha256": "f" * 64, "weights_file": "adapter_model.safetensors"}
        ).encode()
        spec = JobSpec(
            environment=EnvironmentRef(id="own/Env-v0"),
            steps=2,
            algorithm=GRPO(group_size=2, groups_per_step=2),
        )
        view = CheckpointView(step=1, policy_version=1, path="", sha256=weights, files={})
        self.facts = RunFacts(
            job=JobView(
                job_id="job-1",
                spec=spec,
                state=state,
                step=1,
                policy_version=1,
                created_at=0.0,
                updated_at=0.0,
            ),
            service_version="1",
            made_at=0.0,
            publishes=[
                PublishFacts(version=version, attempt=1, weights_sha256=str(version) * 64)
                for version in (0, 1)
            ]
            + [PublishFacts(version=1, attempt=1, weights_sha256="f" * 64)],
            steps=[StepFacts(step=1, attempt=1, episodes=4, trained=4, ledger_sha256=sha256(self.ledger))],
            not_learned=[fate(line, fate="not_learned") for line in in_progress],
            checkpoints=[CheckpointFacts(view=view)],
            events=EventsFacts(
                count=1, head_sha256=chained(EMPTY_CHAIN, self.event.model_dump_json().encode())
            ),
        )

    def bundle(self, folder, stored=None):
        path = folder / "run.bundle.tar"
        with writing_bundle(path) as writer:
            writer.add_events([self.event])
            writer.add_ledger([self.ledger])
            writer.add_episodes(known_to(self.facts, self.episodes if stored is None else stored))
            for name, body in self.files.items():
                writer.add(f"checkpoints/step-000001/{name}", body)
            writer.finish(self.facts)
        return path


def other(bundle, name, body):
    """Pack a bundle again with another file under a name; None leaves it out."""
    with tarfile.open(bundle) as archive:
        files = {entry.name: archive.extractfile(entry).read() for entry in archive}
    files[name] = body
    target = bundle.with_name("other.tar")
    with tarfile.open(target, "w") as archive:
        for one, content in files.items():
            if content is not None:
                entry = tarfile.TarInfo(one)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return target


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.PAUSED, JobState.CANCELLED])
def test_the_bundle_of_a_job_in_the_middle_of_a_step_is_whole(tmp_path, state):
    arrived, later = stored_record(0, 1.0, step=2), stored_record(1, 1.0, step=2)
    run = Run(state=state, in_progress=[arrived])
    found = verify(run.bundle(tmp_path, stored=[*run.episodes, arrived, later]))
    assert found.problems == []
    lost = verify(run.bundle(tmp_path, stored=[*run.episodes, later]))
    assert [problem for problem in lost.problems if "job-1:2:0" in problem] == lost.problems != []


def test_a_changed_ledger_is_found(tmp_path):
    run = Run()
    ledger = json.loads(run.ledger)
    ledger["episodes"][0]["trained_tokens"] += 1
    found = verify(other(run.bundle(tmp_path), "ledger.jsonl", json.dumps(ledger).encode() + b"\n"))
    assert len(found.problems) == 1
    assert "step 1" in found.problems[0]


@pytest.mark.parametrize("name", [MANIFEST, WEIGHTS, "episodes/step-000001.jsonl"])
def test_a_missing_file_is_named(tmp_path, name):
    found = verify(other(Run().bundle(tmp_path), name, None))
    assert not found.ok
    assert f"{name}: missing" in found.problems


def test_a_file_that_was_not_packed_is_named(tmp_path):
    found = verify(other(Run().bundle(tmp_path), "checkpoints/step-000009/adapter_model.safetensors", b""))
    assert len(found.problems) == 1
    assert "step-000009" in found.problems[0]


@pytest.mark.parametrize("change", [{"weights_sha256": "a" * 64}, {"files": {}}])
def test_a_forged_manifest_is_found(tmp_path, change):
    run = Run()
    forged = json.dumps({**json.loads(run.files["manifest.json"]), **change}).encode()
    assert any(
        MANIFEST in problem for problem in verify(other(run.bundle(tmp_path), MANIFEST, forged)).problems
    )
    # Also if it was forged before it was packed.
    run.files["manifest.json"] = forged
    assert verify(run.bundle(tmp_path)).problems
