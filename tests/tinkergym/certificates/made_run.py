"""A run as a service would have recorded it, with two steps, made in a millisecond; and its bundle."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tinkergym.algorithms import GRPO
from tinkergym.certificates.bundle import writing_bundle
from tinkergym.remote.certificate_download import known_to
from tinkergym.schema.certificate import (
    EMPTY_CHAIN,
    AdapterFacts,
    AgreementFacts,
    AttemptFacts,
    CheckpointFacts,
    EpisodeFate,
    EventsFacts,
    PublishFacts,
    RunFacts,
    Signature,
    SignedFacts,
    StepFacts,
    StepLedger,
    chained,
    signed_bytes,
)
from tinkergym.schema.events import (
    CheckpointEvent,
    CheckpointView,
    EpisodeEvent,
    Event,
    JobState,
    SettingChange,
    SettingsUpdate,
    StateEvent,
    StepEvent,
    UpdateEvent,
)
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.testing.made_up_episodes import stored_record

JOB = "job-1"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw().hex()
CHECKPOINT = "checkpoints/step-000002"
EPISODES = 4


def sha256(body):
    return hashlib.sha256(body).hexdigest()


def spec_of(**settings):
    return RLSpec(
        environment=EnvironmentRef(id="own/Env-v0"),
        steps=2,
        algorithm=GRPO(group_size=2, groups_per_step=2),
        sampling={"max_turn_tokens": 4, "temperature": 1.0},
        evaluate=[],
        **settings,
    )


@dataclass
class Run:
    """Everything that the service has of a job; change it before `bundle`."""

    state: JobState = JobState.COMPLETED
    done: int = 2
    in_progress: list[bytes] = field(default_factory=list)
    """Episodes of the step after the last one."""

    def __post_init__(self):
        self.spec = spec_of()
        self.update = SettingsUpdate(
            changes=[SettingChange(name="learning_rate", old=1e-3, new=5e-4)], from_step=2
        )
        self.episodes = {
            step: [stored_record(n, float(n), step=step) for n in range(EPISODES)]
            for step in range(1, self.done + 1)
        }
        self.ledgers = {step: self._ledger(step) for step in self.episodes}
        self.files = self._checkpoint_files()
        self.events = self._events()
        self.facts = self._facts()

    def _ledger(self, step):
        fates = [
            EpisodeFate(
                episode_id=json.loads(line)["episode_id"],
                fate="trained",
                sampled_tokens=1,
                captured_tokens=1,
                trained_tokens=1,
                matched_tokens=1,
                sha256=sha256(line),
            )
            for line in self.episodes[step]
        ]
        return StepLedger(step=step, attempt=1, episodes=fates)

    def _checkpoint_files(self):
        tensors = {
            f"layers.{n}.lora_B.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
            for n in range(3)
        }
        header = json.dumps(tensors).encode()
        files = {
            "adapter_config.json": b"{}",
            "adapter_model.safetensors": struct.pack("<Q", len(header)) + header,
        }
        named = {name: {"bytes": len(body), "sha256": sha256(body)} for name, body in files.items()}
        manifest = {
            "format": 1,
            "step": self.done,
            "policy_version": self.done,
            "adapter": self.spec.adapter.model_dump(mode="json"),
            "model_fingerprint": "e" * 64,
            "optimizer_steps": self.done,
            "weights_file": "adapter_model.safetensors",
            "weights_sha256": "abc"[self.done] * 64,
            "files": named | {"optimizer.safetensors": {"bytes": 9, "sha256": "d" * 64}},
            "extra": {"job_id": JOB, "spec": self.spec.model_dump(mode="json")},
        }
        return files | {"manifest.json": json.dumps(manifest).encode()}

    @property
    def checkpoint(self):
        """The folder of the newest checkpoint in the bundle."""
        return f"checkpoints/step-{self.done:06d}"

    def _view(self, step):
        return CheckpointView(
            step=step,
            policy_version=step,
            path=f"/data/{JOB}/step-{step:06d}.e1",
            key=f"{JOB}/step-{step:06d}.e1",
            sha256=sha256(self.files["adapter_model.safetensors"]),
            files={name: len(body) for name, body in self.files.items()} | {"optimizer.safetensors": 9},
        )

    def _events(self):
        bodies = [
            StateEvent(state=JobState.QUEUED),
            StateEvent(state=JobState.STARTING, attempt=1),
            StateEvent(state=JobState.RUNNING, attempt=1),
        ]
        for step in self.episodes:
            if step == 2:
                bodies.append(UpdateEvent(changes=self.update.changes, from_step=2))
            bodies += [self._step_event(step), self._episode_event(step)]
            view = self._view(step)
            bodies.append(
                CheckpointEvent(
                    step=step, policy_version=step, path=view.path, sha256=view.sha256, key=view.key
                )
            )
        bodies.append(StateEvent(state=self.state, reason="said so", attempt=1))
        return [
            Event(seq=seq, job_id=JOB, time=100.0 + seq / 16, body=body)
            for seq, body in enumerate(bodies, start=1)
        ]

    def _step_event(self, step):
        return StepEvent(
            step=step,
            steps=2,
            policy_version=step,
            reward_mean=sum(range(EPISODES)) / EPISODES,
            loss=0.5,
            episodes=EPISODES,
            sampled_tokens=EPISODES,
            trained_tokens=EPISODES,
            turns=EPISODES,
            tokens_per_second=1.0,
            step_seconds=1.0,
            sampling_seconds=0.5,
            learning_seconds=0.5,
            seconds_left=0.0,
            metrics={
                "parity_mean": step * 1e-7,
                "parity_max": step * 1e-6,
                "learning_rate": 1e-3 if step == 1 else 5e-4,
                "used/tokens": 8.0 * step,
                "used/hours": 3.0 * step / 3600,
            },
        )

    def _episode_event(self, step):
        record = json.loads(self.episodes[step][0])
        return EpisodeEvent(
            step=step,
            episode_id=record["episode_id"],
            seed=0,
            stop_reason="terminated",
            episode_return=0.0,
            transcript=[("user", "question"), ("assistant", "answer 0")],
        )

    def _facts(self):
        versions = range(self.done + 1)
        job = JobView(
            job_id=JOB,
            spec=self.spec.model_copy(
                update={"algorithm": self.spec.algorithm.model_copy(update={"learning_rate": 5e-4})}
            )
            if self.done == 2
            else self.spec,
            state=self.state,
            reason="said so",
            step=self.done,
            policy_version=self.done,
            attempt=1,
            created_at=self.events[0].time,
            updated_at=self.events[-1].time,
            last_seq=len(self.events),
            updates=[self.update] if self.done == 2 else [],
            used_seconds=3.0 * self.done + 0.125,
            used_tokens=8 * self.done,
            packs={"own": "1.0"},
        )
        return RunFacts(
            job=job,
            service_version="1.0",
            made_at=200.0,
            attempts=[
                AttemptFacts(
                    attempt=1,
                    worker_id="pool-1",
                    versions={"python": "3.11"},
                    place={"engine": "transformers"},
                    model_fingerprint="e" * 64,
                )
            ],
            publishes=[
                PublishFacts(version=version, attempt=1, weights_sha256="abc"[version] * 64)
                for version in versions
            ],
            agreements=[
                AgreementFacts(
                    version=version,
                    attempt=1,
                    mean=(version + 1) * 1e-7,
                    largest=(version + 1) * 1e-6,
                    tokens=1 if version == self.done else EPISODES,
                    by="probe" if version == self.done else "episodes",
                    allowed=1e-3,
                )
                for version in versions
            ],
            adapters=[
                AdapterFacts(
                    version=1,
                    attempt=1,
                    tensors=3,
                    nonzero_tensors=3,
                    norm=0.5,
                    learner_shift=0.25,
                    engine_shift=0.25,
                    tokens=min(2, self.done),
                )
            ],
            steps=[self._step_facts(step) for step in self.ledgers],
            not_learned=[
                EpisodeFate(
                    episode_id=json.loads(line)["episode_id"], fate="not_learned", sha256=sha256(line)
                )
                for line in self.in_progress
            ],
            checkpoints=[
                CheckpointFacts(
                    view=self._view(step),
                    manifest_sha256=sha256(self.files["manifest.json"]) if step == self.done else "c" * 64,
                )
                for step in self.ledgers
            ],
            events=self._events_facts(),
        )

    def _step_facts(self, step):
        return StepFacts(
            step=step,
            attempt=1,
            episodes=EPISODES,
            trained=EPISODES,
            sampled_tokens=EPISODES,
            captured_tokens=EPISODES,
            trained_tokens=EPISODES,
            matched_tokens=EPISODES,
            ledger_sha256=sha256(self.ledgers[step].model_dump_json().encode()),
            learning_rate=1e-3 if step == 1 else 5e-4,
        )

    def _events_facts(self):
        head = EMPTY_CHAIN
        for event in self.events:
            head = chained(head, event.model_dump_json().encode())
        return EventsFacts(count=len(self.events), head_sha256=head)

    def with_events(self, events):
        """Let the run have had other events, which its service chained."""
        self.events = list(events)
        self.facts = self.facts.model_copy(update={"events": self._events_facts()})
        return self

    def with_ledger(self, step, ledger):
        """Let a step have had another ledger, which its service recorded."""
        self.ledgers[step] = ledger
        changed = sha256(ledger.model_dump_json().encode())
        steps = [
            one.model_copy(update={"ledger_sha256": changed}) if one.step == step else one
            for one in self.facts.steps
        ]
        self.facts = self.facts.model_copy(update={"steps": steps})
        return self

    def bundle(self, folder, stored=None):
        """Write the bundle as a client does."""
        path = folder / "run.bundle.tar"
        lines = [line for step in self.episodes for line in self.episodes[step]] + self.in_progress
        with writing_bundle(path) as writer:
            writer.add_events(self.events)
            writer.add_ledger([ledger.model_dump_json().encode() for ledger in self.ledgers.values()])
            writer.add_episodes(known_to(self.facts, lines if stored is None else stored))
            for name, body in self.files.items():
                writer.add(f"{self.checkpoint}/{name}", body)
            writer.finish(signed(self.facts))
        return path


def signed(facts):
    signature = Signature(public_key=PUBLIC, signature=KEY.sign(signed_bytes(facts)).hex())
    return SignedFacts(facts=facts, signature=signature)
