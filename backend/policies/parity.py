"""Whether learner and engine agree on the policy: compared by tokens that the engine sampled.

Most versions are compared by the episodes that they play. With episodes played ahead, all of a step's tokens
may be of an older version; and a job's last version, or one trained on a dataset, plays none. Then a few
tokens, sampled for the comparison, show that it arrived in the engine as it left the learner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from backend.engines.asking import Asked
from backend.engines.protocol import SamplingEngine
from backend.learner.sequences import FloatArray, TrainSequence
from tinkergym.errors import ParityError, ServiceUnavailableError
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest
from tinkergym.trajectory.content_parts import ImageSpan

_PROMPTS = 8
_TOKENS = 4
"""Tokens sampled after each prompt: they cost one forward pass of the engine each, for all prompts
together."""
_PATIENCE_SECONDS = 60.0


def parity(
    allowed: float,
    sequences: list[TrainSequence],
    learner_logprobs: list[FloatArray],
    current: list[npt.NDArray[np.bool_]] | None = None,
) -> dict[str, float]:
    """Compare the learner's logprobs with the sampling logprobs.

    Args:
        allowed: Mean difference in nats, see `JobContext.parity_threshold`.
        sequences: The trained sequences.
        learner_logprobs: For each sequence's sampled tokens, by the policy before the update.
        current: Which of those tokens this version sampled; None means all. Others are not compared.

    Returns:
        `parity_mean` and `parity_max` in nats; empty if no token can be compared.

    Raises:
        ParityError: They differ by more than the job allows.
    """
    sampled = np.concatenate(
        [
            np.asarray([p for p in sequence.sampling_logprobs if p is not None], dtype=np.float32)
            for sequence in sequences
        ]
    )
    drift = np.abs(np.concatenate(learner_logprobs) - sampled)
    if current is not None:
        drift = drift[np.concatenate(current)]
        if not len(drift):
            return {}
    mean, largest = float(drift.mean()), float(drift.max())
    if not mean <= allowed:  # Also if it is NaN.
        raise ParityError(
            f"the learner's and the engine's logprobs of the same tokens differ by {mean:.3g} nats on "
            f"average and {largest:.3g} at most, over the threshold of {allowed:.3g}",
            hint="the engine does not sample the trained policy; report this with the job's log",
            field="parity_threshold",
        )
    return {"parity_mean": mean, "parity_max": largest}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt."""

    token_ids: Sequence[int]
    images: Sequence[ImageSpan] = ()

    def cut_to(self, length: int) -> Prompt:
        """Return its beginning, with whole images only."""
        cut = next((image for image in self.images if image.end > length), None)
        length = length if cut is None else cut.start
        return Prompt(self.token_ids[:length], [image for image in self.images if image.end <= length])


def prompt_of(token_ids: Sequence[int], mask: Sequence[bool], images: Sequence[ImageSpan]) -> Prompt:
    """Return the tokens before the first sampled token."""
    return Prompt(token_ids, images).cut_to(list(mask).index(True))


def probe(
    engine: SamplingEngine,
    policy_id: str,
    version: int,
    prompts: Iterable[Prompt],
    temperature: float,
) -> list[TrainSequence]:
    """Sample completions of a few prompts with a version, for comparison only.

    Args:
        engine: The engine with the policy.
        policy_id: The policy's id.
        version: The policy's newest version.
        prompts: Only the first few are used.
        temperature: Sampling temperature.

    Raises:
        ServiceUnavailableError: The engine did not respond.
    """
    requests = [
        SampleRequest(
            request_id=f"{policy_id}/parity/{version}/{number}",
            policy=policy_id,
            policy_version=version,
            # A separate owner: otherwise it would wait behind the episodes of the steps ahead.
            session_id="parity/",
            prompt_ids=list(prompt.token_ids),
            images=list(prompt.images),
            max_tokens=_TOKENS,
            temperature=temperature,
            seed=version + 1,
        )
        for number, prompt in enumerate(
            prompt.cut_to(engine.context_length - _TOKENS) for prompt in islice(prompts, _PROMPTS)
        )
    ]
    return [
        TrainSequence.sampled(request, answer, temperature=temperature)
        for request, answer in zip(requests, _answers(engine, requests), strict=True)
    ]


def _answers(engine: SamplingEngine, requests: list[SampleRequest]) -> list[Completion]:
    found = Asked(engine, requests).wait(_PATIENCE_SECONDS)
    answers = [found.get(request.request_id) for request in requests]
    good = [answer for answer in answers if isinstance(answer, Completion)]
    if len(good) < len(requests):
        said = next(
            (answer.error.message for answer in answers if isinstance(answer, SampleFailure)), "nothing"
        )
        raise ServiceUnavailableError(
            f"the engine could not be compared with the learner; for {len(requests) - len(good)} of "
            f"{len(requests)} prompts it returned: {said}",
            hint="the job's log may say why; resume the job from its last checkpoint",
        )
    return good
