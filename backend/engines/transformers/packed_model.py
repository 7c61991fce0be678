"""A Hugging Face causal LM that runs on packed batches.

Models work if their attention uses transformers' attention interface and is plain softmax attention with
absolute or rotary positions. This is not decided by a list of names but checked when a model is loaded: a
packed run must produce the logits of an ordinary one.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.utils.logging import disable_progress_bar

from backend.catalog.models import read_model_facts
from backend.compute.cpu import CPU_KERNELS
from backend.compute.cpu.fast_linears import all_through_onednn, speed_up_linears
from backend.compute.cpu.fast_norms import speed_up_norms
from backend.compute.quantized_weights import loading_options, through_one_product
from backend.compute.supported_models import Quantization, has_mrope, keeps_a_state
from backend.compute.whole_model import load_whole
from backend.engines.token_sampling import choose_tokens
from backend.engines.transformers.image_ids import IMAGE_IDS, Shown, ShownImages
from backend.engines.transformers.lean_decoder import LeanDecoder
from backend.engines.transformers.loaded_policies import AdapterSegment, LoadedPolicies
from backend.engines.transformers.packed_attention import ATTENTION_NAME
from backend.engines.transformers.packed_batch import Indices, PackedBatch, Span
from backend.engines.transformers.slot_cache import SlotCache
from backend.vision.pixels import ImageReader
from backend.vision.tower import KeptFeatures
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.sampling import SampleRequest

_log = logging.getLogger(__name__)

_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
_LOOSE_TOLERANCE = 0.5


class PackedModel:
    """The engine's copy of a model, with the policies that can be bound to it."""

    def __init__(
        self,
        directory: Path,
        *,
        device: torch.device,
        dtype: torch.dtype,
        merged_limit: int = 4,
        lean: bool = True,
        quantized: Quantization = "",
    ) -> None:
        """Load a model and check that it can run packed.

        Args:
            directory: As `resolve_model` returns it.
            device: The device to run on.
            dtype: Type of weights and cache.
            merged_limit: See `LoadedPolicies`.
            lean: Whether to use a lean decoder where the model supports it.
            quantized: The format of the linear layers' weights, if it is not `dtype`.

        Raises:
            InvalidRequestError: Its architecture needs something that packed batches do not provide.
        """
        self.device, self.dtype = device, dtype
        disable_progress_bar()
        try:
            self._model: Any = load_whole(
                directory,
                dtype=dtype,
                attn_implementation="sdpa",
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                **loading_options(quantized, device=device, dtype=dtype),
            )
        except (ValueError, OSError, ImportError) as error:
            raise _unsupported(directory, f"transformers cannot load it: {error}") from error
        if quantized:
            through_one_product(self._model)
        else:
            self._model.to(device)
        self._model.eval().requires_grad_(False)
        speed_up_norms(self._model)
        speed_up_linears(self._model)
        self._onednn = all_through_onednn(self._model)
        self.parameter_count = sum(parameter.numel() for parameter in self._model.parameters())
        self._keep_rows = "logits_to_keep" in inspect.signature(self._model.forward).parameters
        self.vocabulary = int(self._model.get_input_embeddings().weight.shape[0])
        self.policies = LoadedPolicies(self._model, merged_limit=merged_limit)
        self._has_mrope = has_mrope(self._model.config.model_type)
        self.images: ShownImages | None = None
        """Inserts images into prompts, for a model with image support."""
        self._lean: LeanDecoder | None = None
        self._may_be_lean = lean and not quantized
        self.bytes_per_token = self._take_on_packed_attention(directory)

    def show_images(self, reader: ImageReader, of_base: KeptFeatures | None = None) -> None:
        """Accept prompts with images; see `ShownImages`."""
        self.images = ShownImages(self._model, self.policies, reader, of_base)

    @property
    def is_lean(self) -> bool:
        """Whether the forward pass avoids the overhead of transformers."""
        return self._lean is not None

    def logits(
        self,
        token_ids: Sequence[int],
        spans: Sequence[Span],
        wanted: Sequence[int],
        segments: Sequence[AdapterSegment],
        cache: SlotCache,
        *,
        rope: Indices | None = None,
    ) -> Tensor:
        """Run new tokens of several sequences; call this in inference mode.

        Args:
            token_ids: The spans' tokens, concatenated.
            spans: The sequences that the tokens belong to.
            wanted: Indices of the spans whose next-token logits are needed.
            segments: Which spans' tokens belong to which policy.
            cache: The sequences' past, to which the new tokens are added.
            rope: The result of `rope` for the spans.

        Returns:
            [len(wanted), vocabulary], valid until the next call.
        """
        batch = PackedBatch(cache, spans, self.device)
        return self._computed(token_ids, batch, batch.last_tokens(wanted), segments, rope)

    def rope(self, requests: Sequence[SampleRequest], spans: Sequence[Span]) -> Indices | None:
        """Return [3, tokens], positions for the rotary embedding; None if they equal the tokens' positions.

        Args:
            requests: The spans' requests.
            spans: As for `logits`.
        """
        if self.images is None or not self._has_mrope or not any(request.images for request in requests):
            return None
        parts = [
            self.images.positions(request, span.start, span.end)
            for request, span in zip(requests, spans, strict=True)
        ]
        return np.concatenate(parts, axis=1)

    def all_logits(
        self,
        token_ids: Sequence[int],
        spans: Sequence[Span],
        segments: Sequence[AdapterSegment],
        cache: SlotCache,
        *,
        rope: Indices | None = None,
    ) -> Tensor:
        """Run new tokens like `logits`, and return the logits after each: [tokens, vocabulary]."""
        batch = PackedBatch(cache, spans, self.device)
        return self._computed(token_ids, batch, np.arange(batch.tokens), segments, rope)

    def _computed(
        self,
        token_ids: Sequence[int],
        batch: PackedBatch,
        keep: Indices,
        segments: Sequence[AdapterSegment],
        rope: Indices | None = None,
    ) -> Tensor:
        # numpy converts a long list several times faster than torch.
        ids = np.array(token_ids, dtype=np.int64)
        shown = None
        if self.images is not None and (ids >= IMAGE_IDS).any():
            shown = self.images.embedded(ids, segments)
        self.policies.bind(segments)
        if self._lean is not None and not self.policies.one_by_one and shown is None and rope is None:
            return self._lean.logits(ids, batch, keep)
        positions, rows = (torch.from_numpy(numbers).to(self.device) for numbers in (batch.positions, keep))
        options: dict[str, Any] = {"position_ids": positions[None], "use_cache": False, "packed": batch}
        if rope is not None:
            three = torch.from_numpy(rope).to(self.device)
            # [4, 1, tokens]: transformers takes the text's positions from the first row, for masks.
            options["position_ids"] = torch.cat([positions[None], three])[:, None]
        if shown is None:
            options["input_ids"] = torch.from_numpy(ids).to(self.device)[None]
        else:
            options["inputs_embeds"] = shown.embeddings[None]
            if shown.deeper:
                return self._with_deeper(shown, options, rows)
        if self._keep_rows:
            options["logits_to_keep"] = rows
        output: Tensor = self._model(**options).logits[0]  # [wanted or tokens, vocabulary]
        return output if self._keep_rows else output[rows]

    def _with_deeper(self, shown: Shown, options: dict[str, Any], rows: Tensor) -> Tensor:
        """Run the decoder with a vision tower's inputs for its first layers; return [rows, vocabulary]."""
        mask = torch.zeros(len(shown.embeddings), dtype=torch.bool, device=self.device)
        mask[shown.places] = True
        states = self._model.get_decoder()(
            **options, visual_pos_masks=mask[None], deepstack_visual_embeds=shown.deeper
        ).last_hidden_state
        logits: Tensor = self._model.get_output_embeddings()(states[0, rows])
        return logits

    def _take_on_packed_attention(self, directory: Path) -> int:
        other = _beside_attention(self._model)
        if other is not None:
            raise _unsupported(directory, f"it has {other}, which the cache does not support")
        samples = _sample_prompts(self.vocabulary)
        ids = [torch.tensor([sample], device=self.device) for sample in samples]
        try:
            with torch.inference_mode():
                runs = [self._model(input_ids=one, use_cache=False).logits[:, -1] for one in ids]
        except Exception as error:
            raise _unsupported(directory, f"a run failed: {type(error).__name__}: {error}") from error
        expected = torch.cat(runs)  # [samples, vocabulary]
        if not self._model._can_set_attn_implementation():
            raise _unsupported(directory, "its attention does not use transformers' attention interface")
        # Only the decoder: a vision tower's attention is bidirectional.
        self._model.get_decoder().set_attn_implementation(ATTENTION_NAME)
        cache = self._sample_cache(samples)
        try:
            with torch.inference_mode():
                found = self._run_in_two_halves(samples, cache)
        except Exception as error:
            raise _unsupported(directory, f"a packed run failed: {type(error).__name__}: {error}") from error
        # The layers last saw the second halves.
        # A layer that saw one row per sample comes after `logits_to_keep`. One that saw neither these nor all
        # tokens (an expert) cannot tell several adapters apart.
        for site in self.policies.sites.values():
            site.per_row = site.seen_tokens == len(samples)
            site.mixable = site.per_row or site.seen_tokens == sum(len(s) - len(s) // 2 for s in samples)
        difference = float((torch.log_softmax(found, -1) - torch.log_softmax(expected, -1)).abs().max())
        # Not `>`: NaN has to fail, too.
        if not difference <= _TOLERANCE.get(self.dtype, _LOOSE_TOLERANCE):
            raise _unsupported(directory, f"a packed run's logprobs differ by {difference:.3g} nats")
        self._lean = self._lean_decoder(samples, found) if self._may_be_lean else None
        for _ in range(2):  # compile now rather than during the first request
            choose_tokens(found, [1.0] * len(samples), [0] * len(samples), [0] * len(samples))
        return cache.bytes_per_token

    def _lean_decoder(self, samples: list[list[int]], expected: Tensor) -> LeanDecoder | None:
        """Return a lean decoder if the model supports it with bitwise equal logits."""
        if not CPU_KERNELS:
            return None
        try:
            # Set for the trial, which runs through it; the caller keeps or removes it.
            self._lean = LeanDecoder(self._model, self.policies, onednn=self._onednn)
            with torch.inference_mode():
                found = self._run_in_two_halves(samples, self._sample_cache(samples))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        else:
            if torch.equal(found, expected):
                return self._lean
            reason = "the logits differ in the last bits"
        _log.info("the model runs with transformers' own modules: %s", reason)
        return None

    def _sample_cache(self, samples: list[list[int]]) -> SlotCache:
        length = max(len(sample) for sample in samples)
        return SlotCache(slots=len(samples), length=length, device=self.device, dtype=self.dtype)

    def _run_in_two_halves(self, samples: list[list[int]], cache: SlotCache) -> Tensor:
        cuts = [len(sample) // 2 for sample in samples]
        pairs = list(zip(samples, cuts, strict=True))
        first = [token for sample, cut in pairs for token in sample[:cut]]
        self._run(first, [Span(slot, 0, cut) for slot, cut in enumerate(cuts)], [0], cache)
        rest = [token for sample, cut in pairs for token in sample[cut:]]
        spans = [Span(slot, cut, len(sample) - cut) for slot, (sample, cut) in enumerate(pairs)]
        return self._run(rest, spans, range(len(spans)), cache)

    def _run(
        self, token_ids: list[int], spans: list[Span], wanted: Sequence[int], cache: SlotCache
    ) -> Tensor:
        whole = AdapterSegment(self.policies.base, slice(0, len(token_ids)), slice(0, len(wanted)))
        return self.logits(token_ids, spans, wanted, [whole], cache)


def _beside_attention(model: Any) -> str | None:
    """Return an unsupported part of the model that the trial with few tokens might not use."""
    kinds = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
    other = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if other:
        return f"layers of type {', '.join(other)}"
    if any(isinstance(module, nn.Conv1d) for module in model.get_decoder().modules()):
        return "convolutions"
    return "a recurrent state" if keeps_a_state(model) else None


def _sample_prompts(vocabulary: int) -> list[list[int]]:
    # Any ids work; the lengths exceed small sliding windows and differ, to make the batch ragged.
    return [
        [(7919 * (index + 31 * row) + 11) % vocabulary for index in range(n)]
        for row, n in enumerate((24, 9, 5))
    ]


def _unsupported(directory: Path, reason: str) -> InvalidRequestError:
    name = read_model_facts(directory).architecture
    return InvalidRequestError(
        f"{name} in {str(directory)!r} cannot be used by the transformers engine: {reason}",
        hint="use engine=vllm, which supports more families, or choose a decoder with plain softmax "
        "attention, such as "
        "Qwen 3, Llama, Mistral, Mixtral or GPT-2",
        field="model",
    )
