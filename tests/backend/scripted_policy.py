"""A trained policy without learner and engine: its weights are a hash of all that it learned, in order.

So two jobs end with the same hash exactly if they learned the same. The engine has the learner's logprobs.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import numpy as np

from backend.episodes.captured_tokens import CapturedTokens
from backend.learner.pass_results import ForwardBackwardResult, OptimStepResult
from backend.learner.sequences import FloatArray, TokenLimits, TrainSequence
from backend.learner.token_loss import TokenLoss
from backend.policies.publishing import TakenWeights
from backend.policies.trained_policy import PolicyPart, StepChange
from backend.store.blobs import Blobs, checkpoint_key, new_checkpoint_key
from backend.store.store import JobLease, ServiceStore
from backend.store.stored_facts import Fact
from tinkergym.agent.sampler import Deliver
from tinkergym.schema.certificate import PublishFacts
from tinkergym.schema.events import CheckpointEvent, CheckpointView
from tinkergym.schema.ids import policy_of
from tinkergym.schema.sampling import Completion, SampleRequest

LIMITS = TokenLimits(vocabulary=10_000, context_length=1024)
_STATE = "state.json"


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


class Published:
    """What every policy published last, and a sampler of it: tokens are drawn by weights, prompt and seed."""

    def __init__(self, captured: CapturedTokens) -> None:
        self.members: dict[str, int] = {}
        """Number of the episode in its step, by the lease of who plays it."""
        self._captured = captured
        self._changed = threading.Condition()
        self._newest: dict[str, tuple[int, str]] = {}
        self._expected: dict[str, int] = {}
        """The version that requests wait for."""

    def publish(self, policy: str, version: int, sha256: str) -> None:
        with self._changed:
            self._newest[policy] = version, sha256

    def expect(self, policy: str, version: int | None) -> None:
        with self._changed:
            self._expected.pop(policy, None)
            if version is not None:
                self._expected[policy] = version
            self._changed.notify_all()

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        watching = self._captured.watching(deliver, requests)
        watching([self._completion(request) for request in requests])

    def close(self) -> None:
        pass

    def _completion(self, request: SampleRequest) -> Completion:
        name = request.policy
        with self._changed:
            assert self._changed.wait_for(lambda: name not in self._expected, 120), "never published"
            version, sha256 = self._newest.get(name, (0, name))
        if request.policy_version not in (None, version):
            version, sha256 = request.policy_version or 0, digest(name, request.policy_version)
        draws = np.random.default_rng(int(digest(sha256, request.prompt_ids, request.seed)[:8], 16))
        # Siblings say different numbers of letters, so that their rewards differ.
        count = 1 + self.members.get(request.seat.lease, draws.integers(99)) % request.max_tokens
        # In `byte_bundle`, "a1", "b3c" and the like, so that there are moves in games.
        letters = [int((64, 16)[place % 2] + draws.integers(3)) for place in range(count)]
        ids = [*letters, *request.stop_ids[:1]][: request.max_tokens]
        return Completion(
            request_id=request.request_id,
            token_ids=ids,
            sampling_logprobs=[-math.log(3)] * len(ids),
            finish_reason="stop" if ids[-1] in request.stop_ids else "length",
            policy_version=version,
        )


class ScriptedFrozen:
    """Implements `FrozenPolicy`: finds each token more or less likely, by its own name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def logprobs(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        return [
            np.asarray(
                [
                    -0.5 - int(digest(self._name, token)[:2], 16) / 256
                    for token, sampled in zip(one.token_ids, one.loss_mask, strict=True)
                    if sampled
                ],
                dtype=np.float32,
            )
            for one in sequences
        ]

    def close(self) -> None:
        pass


class ScriptedPolicy:
    """Implements `TrainedPolicy` for one policy of a job."""

    def __init__(
        self,
        agent: str,
        lease: JobLease,
        *,
        store: ServiceStore,
        files: Blobs,
        published: Published,
        before_batch: Callable[[], None] = lambda: None,
    ) -> None:
        self._agent, self._lease, self._store = agent, lease, store
        self._files, self._published = files, published
        self._before_batch = before_batch
        self._spec = lease.spec.for_agent(agent)
        self._name = policy_of(lease.job_id, agent)
        self._change = StepChange()
        self._gradient: list[str] = []
        self._facts: list[Fact] = []
        self._kept: dict[str, frozenset[int]] = {}
        self.id = store.policies_of(lease.job_id)[agent]
        self.weights = self._beginning = digest("new", self._spec.seed, self._spec.adapter)
        self.notes: dict[str, object] = {}
        self.calls: list[str] = []
        """What the loop asked for, in order."""
        self.limits, self.context_length = LIMITS, LIMITS.context_length
        self.sampling_seconds = self.learning_seconds = 0.0

    # --- its life ---

    def restore(self, at_most: int | None = None) -> int:
        self.weights, self.notes = self._beginning, {}
        for view in reversed(self.checkpoints()):
            if at_most is None or view.step <= at_most:
                state = json.loads(self._files.get(f"{self._key(view)}/{_STATE}"))
                self.weights, self.notes = state["weights"], state["notes"]
                return view.step
        return 0

    def release(self) -> None:
        self.calls.append("release")

    def forget(self) -> None:
        self.calls.append("forget")

    # --- training ---

    @property
    def is_changing(self) -> bool:
        return self._change.begun

    def step_finished(self) -> None:
        self._change.finished()

    def forward_backward(self, sequences, loss: TokenLoss, *, totals=None) -> ForwardBackwardResult:
        self._before_batch()
        self.calls.append("batch")
        algorithm = getattr(loss.token_losses, "__self__", loss.token_losses.__qualname__)
        how = loss.aggregation, loss.constant_tokens, loss.entropy_coefficient, algorithm, totals
        taught = [one for one in sequences if np.any(one.advantage)]
        if taught or not loss.silent_without_advantage:
            self._gradient.append(digest(how, [_of(one) for one in sequences]))
        logprobs = self.logprobs(sequences)
        return ForwardBackwardResult(
            loss=1.0,
            learner_logprobs=logprobs,
            metrics={"ratio_mean": 1.0, "sampled_entropy": 3.0, "shared_fraction": 0.0},
            judged_tokens=sum(map(len, logprobs)),
        )

    def forward_backward_together(self, parts: Mapping[str, PolicyPart]) -> dict[str, ForwardBackwardResult]:
        return {key: one.policy.forward_backward(one.sequences, one.loss) for key, one in parts.items()}

    def optim_step(self, **settings) -> OptimStepResult:
        with self._change.applying():
            skipped = not self._gradient
            if not skipped:
                self.weights = digest(self.weights, self._gradient, sorted(settings.items()))
            self._gradient = []
        metrics = {"grad_norm": 0.0 if skipped else 1.0, "learning_rate": settings["learning_rate"]}
        return OptimStepResult(optimizer_step=1, skipped=skipped, metrics=metrics, **metrics)

    def has_gradient(self) -> bool:
        return bool(self._gradient)

    def forget_gradient(self) -> None:
        self._gradient = []

    def logprobs(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        return [
            np.asarray(
                [
                    -1.0 if logprob is None else logprob
                    for logprob, sampled in zip(one.sampling_logprobs, one.loss_mask, strict=True)
                    if sampled
                ],
                dtype=np.float32,
            )
            for one in sequences
        ]

    def values(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        return [np.zeros_like(own) for own in self.logprobs(sequences)]

    @contextmanager
    def beginning(self, *, asked_again: bool = False) -> Iterator[ScriptedFrozen]:
        yield ScriptedFrozen("beginning")

    def open_teacher(self, teacher: str) -> ScriptedFrozen:
        return ScriptedFrozen(teacher)

    # --- versions ---

    def take_weights(self) -> TakenWeights:
        hashed: Future[str] = Future()
        hashed.set_result(self.weights)
        return TakenWeights(None, hashed)  # type: ignore[arg-type]

    def publish(self, version: int, taken: TakenWeights, *, let_finish: bool = False) -> None:
        self.calls.append(f"publish {version}")
        self._published.publish(self._name, version, taken.sha256)
        attempt = self._lease.attempt
        seen = PublishFacts(agent=self._agent, version=version, attempt=attempt, weights_sha256=taken.sha256)
        self._facts.append(
            Fact(kind="publish", agent=self._agent, number=version, attempt=attempt, body=seen)
        )

    def recorded_sha256(self, version: int) -> str | None:
        return self._store.version_sha256(self._lease.job_id, version, self._agent)

    def probed_parity(self, version, prompts, *, temperature, allowed) -> dict[str, float]:
        self.calls.append(f"probe {version}")
        return {"parity_mean": 0.0, "parity_max": 0.0} if any(True for _ in prompts) else {}

    def note_agreement(self, version, metrics, sequences, logprobs, *, allowed, by_probe=False) -> None:
        pass

    def take_facts(self) -> list[Fact]:
        facts, self._facts = self._facts, []
        return facts

    def await_version(self, version: int | None) -> None:
        self._published.expect(self._name, version)

    def let_engine_sleep(self) -> None:
        self.calls.append("sleep")

    def expect_requests_for(self, version: int) -> None:
        self._published.expect(self._name, version)

    def answer_kept_requests(self) -> None:
        self._published.expect(self._name, None)

    def refuse_kept_requests(self) -> None:
        self._published.expect(self._name, None)

    # --- checkpoints ---

    def checkpoints(self) -> list[CheckpointView]:
        return self._store.checkpoints(self._lease.job_id, self._agent)

    def save(self, step: int, *, version: int | None = None) -> None:
        version = step if version is None else version
        state = {"weights": self.weights, "notes": self.notes}
        key = new_checkpoint_key(self._lease.job_id, self._agent, step, epoch=self._lease.epoch)
        self._files.put(f"{key}/{_STATE}", json.dumps(state).encode())
        where = {"step": step, "policy_version": version, "key": key}
        files = {blob.key: blob.bytes for blob in self._files.files(key)}
        view = CheckpointView(**where, sha256=self.weights, files=files)
        self._store.add_checkpoint(self._lease, view, self._agent)
        event = CheckpointEvent(**where, sha256=self.weights, agent=self._agent)
        self._store.append_event(self._lease, event)

    def tidy(self, step: int) -> None:
        kept = frozenset[int]().union(*self._kept.values())
        made = [view for view in self.checkpoints() if 0 < view.step <= step and view.step not in kept]
        for old in made[: -self._spec.keep_checkpoints]:
            version = old.policy_version
            if self._store.remove_checkpoint(self._lease, old.step, self._agent, unused_version=version):
                self._files.delete(self._key(old))

    def _key(self, view: CheckpointView) -> str:
        return checkpoint_key(self._lease.job_id, self._agent, view)

    def keep_steps(self, steps: Iterable[int], *, why: str = "evaluations") -> None:
        kept = frozenset(steps)
        freed = self._kept.get(why, frozenset()) - kept
        self._kept[why] = kept
        if freed and (views := self.checkpoints()):
            self.tidy(views[-1].step)

    def note(self, notes: Mapping[str, object]) -> None:
        self.notes = dict(notes)

    def load(self, policy: str, *, with_optimizer: bool) -> None:
        with self._change.applying():
            self.weights = digest(policy, with_optimizer)


def _of(sequence: TrainSequence) -> tuple[object, ...]:
    """Return what a learner would learn from, in a form that can be hashed."""
    per_token = (sequence.advantage, sequence.proximal_logprobs, sequence.reference_logprobs)
    numbers = [None if one is None else np.asarray(one, dtype=np.float64).tolist() for one in per_token]
    return (list(sequence.token_ids), list(sequence.loss_mask), sequence.temperature, *numbers)
