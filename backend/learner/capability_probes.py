"""What a model can do is tested with a few random tokens, which leave it as it was unless it passes."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812

from backend.compute.supported_models import keeps_a_state
from backend.learner.batching import MicroBatch
from backend.learner.sequences import TrainSequence
from backend.learner.shared_attention import ATTENTION

_PROBE_LENGTH = 12
_LOGIT_PROBE = 1000.0
"""Known soft caps range from 15 to 50."""
_TOLERANCE = 1e-4
"""Relative to the largest value; a wrong head or mask differs by far more, float32 rounding by far less.

For the head in every dtype: if it is plain, both ways perform the same operations with the same rounding.
"""
_PREFIX_TOLERANCES = {torch.float16: 2.5e-3, torch.bfloat16: 2e-2}
"""A different layout of attention changes the rounding: in bfloat16 by up to 1e-2 in random models of 28
layers, and by 5e-3 in nano; float16 has three bits more. A wrong mask or wrong positions differ by 0.15 in
nano."""

_log = logging.getLogger(__name__)


class Probed(Protocol):
    """A `CausalLM` that is being made."""

    model: Any
    device: torch.device
    decoder: Any
    output_head: Any
    vocabulary: int
    shares_prefixes: bool

    def batches(self, sequences: Sequence[TrainSequence], *, max_tokens: int) -> list[list[MicroBatch]]:
        """See `CausalLM`."""
        ...

    def features(self, batch: MicroBatch) -> torch.Tensor:
        """See `CausalLM`."""
        ...

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """See `CausalLM`."""
        ...


def head_is_plain(lm: Probed) -> bool:
    """Whether its logits are one product of the last hidden states."""
    if lm.decoder is lm.model:
        return False  # it does not expose its decoder separately
    ids = probe_ids(lm.vocabulary, 1)[:, :_PROBE_LENGTH].to(lm.device)
    with torch.no_grad():
        states = lm.decoder(input_ids=ids, use_cache=False).last_hidden_state
        scale = _until_a_cap_shows(states, lm.output_head(states))
        hook = lm.output_head.register_forward_pre_hook(lambda _, given: (given[0] * scale, *given[1:]))
        try:
            whole = lm.model(input_ids=ids, use_cache=False).logits
            split = lm.output_head(states)
        finally:
            hook.remove()
    return _difference(split, whole) <= _TOLERANCE


def prefixes_can_be_shared(lm: Probed) -> bool:
    """Whether equal beginnings of sequences may be computed once; if so, its attention is set so."""
    config = text_part(lm.model.config)
    usual = config._attn_implementation
    if usual != "sdpa" or not _attends_fully(config) or keeps_a_state(lm.model):
        _log.info(
            "prompts of %s are computed once per sequence: it does not have plain attention",
            config.model_type,
        )
        return False
    ids = probe_ids(lm.vocabulary, 3)
    ids[1, : _PROBE_LENGTH // 2] = ids[0, : _PROBE_LENGTH // 2]
    # Two begin equally, one does not, and all differ in length: each kind of place in the layout is tested.
    sequences = [
        TrainSequence(
            token_ids=row[: _PROBE_LENGTH - i].tolist(),
            loss_mask=[False] + [True] * (_PROBE_LENGTH - i - 1),
            sampling_logprobs=[0.0] * (_PROBE_LENGTH - i),
        )
        for i, row in enumerate(ids)
    ]
    expected = _probe_logprobs(lm, sequences)
    lm.shares_prefixes, config._attn_implementation = True, ATTENTION
    tolerance = _PREFIX_TOLERANCES.get(lm.model.dtype, _TOLERANCE)
    try:
        difference = _difference(_probe_logprobs(lm, sequences), expected)
    except NotImplementedError as error:
        why = f"it wants {error}"
    except Exception as error:
        why = f"with shared prompts it failed: {type(error).__name__}: {error}"
    else:
        if difference <= tolerance:
            return True
        why = f"with shared prompts its logprobs differ by {difference:.1e}, more than {tolerance:.0e}"
    config._attn_implementation = usual
    _log.warning("prompts of %s are computed once per sequence: %s", config.model_type, why)
    return False


def _probe_logprobs(lm: Probed, sequences: list[TrainSequence]) -> torch.Tensor:
    ((batch,),) = lm.batches(sequences, max_tokens=1000)
    with torch.no_grad():
        table = F.log_softmax(lm.logits(lm.features(batch)), dim=-1).cpu()  # [U, V]
    picked = table[torch.from_numpy(batch.prediction_of), torch.from_numpy(batch.targets)]
    # In the order of the sequences: the two layouts have their predictions in different orders.
    return picked[torch.from_numpy(np.argsort(batch.slots))]


def _until_a_cap_shows(states: torch.Tensor, logits: torch.Tensor) -> float:
    """Return the factor on the head's input at which a soft cap would visibly change small logits."""
    largest = torch.finfo(states.dtype).max / 16
    wanted = min(_LOGIT_PROBE, largest) / max(float(logits.abs().max()), 1e-6)
    return max(1.0, min(wanted, largest / max(float(states.abs().max()), 1e-6)))


def _attends_fully(config: Any) -> bool:
    """Return whether every layer attends to all earlier tokens, without a window or a recurrent state."""
    text = text_part(config)
    kinds = getattr(text, "layer_types", None)
    if kinds is not None:
        return set(kinds) == {"full_attention"}
    return getattr(text, "sliding_window", None) is None


def text_part(config: Any) -> Any:
    """Return the part of a model's configuration for its decoder, which is nested in vision models."""
    return config.get_text_config(decoder=True)


def probe_ids(vocabulary: int, rows: int, length: int = _PROBE_LENGTH) -> torch.Tensor:
    """Return [rows, length] random ids, always the same."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, vocabulary, (rows, length), generator=generator)


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest value."""
    if found.shape != expected.shape:
        return math.inf
    scale = max(float(expected.abs().max()), 1e-6)
    return float((found - expected).abs().max()) / scale
