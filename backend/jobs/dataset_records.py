"""A dataset for a job loop: records for training and evaluation, and their order.

The order is a pure function of the job's seed and the step's number, so a resumed job continues without a
cursor.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backend.jobs.job_context import JobContext
from backend.jobs.job_control import JobControl
from backend.learner.sequences import TrainSequence
from backend.policies.parity import Prompt
from backend.store.uploads import Uploads
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.dataset import DatasetSpec
from tinkergym.schema.uploaded_data import TokenSequence
from tinkergym.trajectory.content_parts import ImageSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSequence:
    """A `TokenSequence` in little memory: datasets may be large, and are kept completely."""

    token_ids: array[int]
    trained: tuple[tuple[int, int], ...]
    images: tuple[ImageSpan, ...] = ()

    @property
    def trained_tokens(self) -> int:
        """Number of trained tokens."""
        return sum(stop - start for start, stop in self.trained)

    @property
    def prompt(self) -> Prompt:
        """The tokens before the first trained token."""
        return Prompt(self.token_ids, self.images).cut_to(self.trained[0][0])


Record = Sequence[WrittenSequence]

_ORDER, _HELD_OUT = 3, 4
"""Last words of the entropy for orders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenData:
    """A job's records."""

    train: Sequence[Record]
    evaluate: Sequence[Record]
    """Held-out records; empty without evaluation."""
    kept_together: int = 0
    """Records of a dataset with held-out ones that have an equal one; all copies are on one side."""

    @property
    def trained_on(self) -> int:
        """How many of the held-out records are also trained on, by content."""
        known = set(map(_content, self.train)) if self.evaluate else set()
        return sum(_content(record) in known for record in self.evaluate)


def read(context: JobContext[DatasetSpec]) -> WrittenData:
    """Read a job's dataset.

    Raises:
        NotFoundError: It was deleted.
        CheckpointCorruptError: It was damaged.
        InvalidRequestError: Nothing is left to train on; the field is `held_out`.
        JobCancelledError, WorkerStoppingError, LeaseLostError: See `JobControl.check`.
    """
    spec = context.spec
    uploads = Uploads(context.uploads, context.lease.tenant_id)
    records = _read(uploads, spec.data, context.control)
    if spec.eval_data is not None:
        return WrittenData(train=records, evaluate=_read(uploads, spec.eval_data, context.control))
    apart = spec.held_out_records(len(records))
    if not apart:
        return WrittenData(train=records, evaluate=[])
    order = np.random.default_rng([spec.seed, _HELD_OUT]).permutation(len(records))
    kept_out = held_out_numbers(records, order.tolist(), apart)
    copies = Counter(map(_content, records))
    if len(kept_out) == len(records):
        raise InvalidRequestError(
            f"the {len(records)} records are all equal, and copies stay together: none is left to train on",
            hint="leave held_out out, or pass eval_data",
            field="held_out",
        )
    return WrittenData(
        train=[record for number, record in enumerate(records) if number not in kept_out],
        evaluate=[records[number] for number in sorted(kept_out)],
        kept_together=sum(count for count in copies.values() if count > 1),
    )


def held_out_numbers(records: Sequence[Record], order: Sequence[int], apart: int) -> set[int]:
    """Return which records are held out: the first in `order`, except that equal ones stay together.

    Args:
        records: All records.
        order: Their numbers, in the order in which they are drawn.
        apart: The most records to hold out; more only if every group of equal ones is larger.
    """
    copies: dict[bytes, list[int]] = defaultdict(list)
    for number, record in enumerate(records):
        copies[_content(record)].append(number)
    kept_out: set[int] = set()
    # Before the loop, which takes the groups out.
    fewest = min(copies.values(), key=len, default=[])
    for number in order:
        some = copies.pop(_content(records[number]), [])
        if len(kept_out) + len(some) <= apart:
            kept_out.update(some)
        if len(kept_out) == apart:
            break
    return kept_out or set(fewest)


def _content(record: Record) -> bytes:
    digest = hashlib.sha256()
    for sequence in record:
        images = [(image.sha256, image.start) for image in sequence.images]
        digest.update(sequence.token_ids.tobytes() + repr((sequence.trained, images)).encode())
    return digest.digest()


def _read(uploads: Uploads, data_id: str, control: JobControl) -> list[Record]:
    records: list[Record] = []
    for record in uploads.records(data_id):
        # Datasets may be gigabytes, and the job cannot be stopped elsewhere meanwhile.
        control.check()
        records.append([written(sequence) for sequence in record])
    return records


def written(sequence: TokenSequence) -> WrittenSequence:
    """Convert a sequence."""
    return WrittenSequence(
        token_ids=array("i", sequence.token_ids),
        trained=tuple(sequence.trained),
        images=tuple(sequence.images),
    )


def batch_numbers(spec: DatasetSpec, records: int, step: int) -> list[int]:
    """Return which of `records` records train step `step` (the first is 1) uses.

    Passes over the data follow each other without a gap: a batch may hold the end of one and the beginning
    of the next, so every record comes equally often.
    """
    first = (step - 1) * spec.batch_size
    numbers: list[int] = []
    orders: dict[int, npt.NDArray[np.int64]] = {}
    for position in range(first, first + spec.batch_size):
        epoch, place = divmod(position, records)
        if epoch not in orders:
            rng = np.random.default_rng([spec.seed, epoch, _ORDER])
            orders[epoch] = rng.permutation(records) if spec.shuffle else np.arange(records)
        numbers.append(int(orders[epoch][place]))
    return numbers


def train_sequence(sequence: WrittenSequence, *, weight: float = 1.0) -> TrainSequence:
    """Return tokens for the learner, each trained one with this weight."""
    mask = [False] * len(sequence.token_ids)
    for start, stop in sequence.trained:
        mask[start:stop] = [True] * (stop - start)
    return TrainSequence(
        token_ids=sequence.token_ids.tolist(),
        loss_mask=mask,
        # These tokens were not sampled; losses on datasets do not use this field.
        sampling_logprobs=[0.0] * len(mask),
        advantage=weight,
        images=sequence.images,
    )
