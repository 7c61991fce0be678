"""A causal language model for the learner: from micro-batches to logprobs of the sampled tokens.

It uses transformers' models, but does not know policies: the caller sets the weights. A model's capabilities
(shared prefixes, an output head that is one matrix) are not listed but tested once: `capability_probes`.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.nn import functional as F  # noqa: N812
from transformers import AutoConfig
from transformers.utils.logging import disable_progress_bar

from backend.compute.cpu.fast_linears import speed_up_linears
from backend.compute.cpu.fast_norms import speed_up_norms
from backend.compute.quantized_weights import loading_options, through_one_product
from backend.compute.supported_models import Quantization, context_length, has_mrope
from backend.compute.whole_model import load_whole
from backend.learner.activations import kept_bytes, layers_of, recompute
from backend.learner.batching import IntArray, MicroBatch, micro_batches
from backend.learner.capability_probes import head_is_plain, prefixes_can_be_shared, probe_ids, text_part
from backend.learner.sequences import TokenLimits, TrainSequence
from backend.learner.shared_attention import AttentionLayout, attending
from backend.learner.swiglu import slim_swiglu
from backend.vision.positions import mrope_positions
from backend.vision.tower import BASE, ImageTower, KeptFeatures, embedded, kept_or_computed
from tinkergym.errors import InvalidRequestError, UnknownModelError, UnsupportedPartError
from tinkergym.schema.views import ImageRules
from tinkergym.trajectory.content_parts import ImageSpan

_KEPT_PROBE_LENGTH = 128
_KEPT_PROBE_ROWS = 4
_log = logging.getLogger(__name__)


class CausalLM:
    """A transformers model on one device, without dropout."""

    def __init__(self, model: Any, *, device: torch.device, quantized: Quantization = "") -> None:
        placed = model if quantized else model.to(device)  # which was placed when it was read
        through_one_product(placed)
        self.model = placed.eval()  # eval: dropout would make logprobs differ from the engine's
        self.device = device
        # Before the probes below, which test the model as it will run.
        speed_up_norms(model)
        speed_up_linears(model)
        slim_swiglu(model)
        self.decoder: Any = model.get_decoder()
        self.output_head: Any = model.get_output_embeddings()
        self.vocabulary = int(self.output_head.weight.shape[0])
        self.context_length = context_length(text_part(model.config).to_dict())
        """See `TokenLimits`."""
        self.hidden_size = int(self.output_head.weight.shape[1])
        self._rotates_by_length = _rotates_by_length(model)
        self._through: Callable[..., torch.Tensor] | None = None
        self.tower: ImageTower | None = None
        """Computes images; None for a model with text only, or before images are enabled."""
        self.image_rules: ImageRules | None = None
        self._of_base = KeptFeatures()
        self._has_mrope = False
        self._tower_rests = False
        self.shares_prefixes = False
        self.splits_head = False
        try:
            self.splits_head = head_is_plain(self)
            self.shares_prefixes = prefixes_can_be_shared(self)
        except Exception as error:  # the code of some hundred families, with no common error type
            raise InvalidRequestError(
                f"models of type {model.config.model_type!r} cannot be trained: a short trial failed with "
                f"{type(error).__name__}: {error}",
                hint="choose a decoder whose only inputs are token ids, such as Qwen 3 or Llama",
                field="model",
            ) from error

    @classmethod
    def load(
        cls,
        model_dir: str | Path,
        *,
        device: torch.device,
        dtype: torch.dtype,
        quantized: Quantization = "",
    ) -> CausalLM:
        """Read a Hugging Face model directory.

        Args:
            model_dir: The directory, or a hub id.
            device: Where it computes.
            dtype: Its number format.
            quantized: The format of its linear layers' weights, if it is another.

        Raises:
            MissingExtraError: `quantized` without bitsandbytes.
            UnknownModelError: transformers cannot load a causal language model from it.
            InvalidRequestError: It does not run like a causal language model.
        """
        disable_progress_bar()  # a progress bar per policy is noise in a service's log
        try:
            config = AutoConfig.from_pretrained(model_dir)
            # transformers' fast attention silently omits a soft cap.
            attention = "eager" if getattr(text_part(config), "attn_logit_softcapping", None) else None
            options = loading_options(quantized, device=device, dtype=dtype)
            model = load_whole(
                model_dir, config=config, dtype=dtype, attn_implementation=attention, **options
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise UnknownModelError(
                f"no causal language model can be loaded from {model_dir}: {error}",
                hint="use a directory with config.json and safetensors weights, or a hub id",
                field="model",
            ) from error
        return cls(model, device=device, quantized=quantized)

    def batches(
        self, sequences: Sequence[TrainSequence], *, max_tokens: int, only: Any = None, workers: int = 1
    ) -> list[list[MicroBatch]]:
        """Cut a training batch for this model, into what is computed at a time."""
        return micro_batches(
            sequences,
            max_tokens=max_tokens,
            share_prefixes=self.shares_prefixes,
            only=only,
            workers=workers if self.can_run_in_parallel else 1,
            rope=self._rope if self._has_mrope else None,
        )

    @property
    def can_run_in_parallel(self) -> bool:
        """Whether several threads may run it at a time, because it keeps no state between runs."""
        stateless = self.shares_prefixes and self.splits_head and not self._rotates_by_length
        return stateless and self._through is None

    @property
    def limits(self) -> TokenLimits:
        """The model's limits."""
        return TokenLimits(
            vocabulary=self.vocabulary, context_length=self.context_length, images=self.image_rules
        )

    @property
    def layer_count(self) -> int:
        """The number of layers that `recompute_layers` affects."""
        return len(layers_of(self.decoder))

    def kept_bytes_per_token(self) -> int:
        """Return a token's memory between the forward and backward pass, if all weights are trained.

        Measured with a few sequences with a common beginning, like completions of one prompt.
        """
        length = min(_KEPT_PROBE_LENGTH, self.context_length or _KEPT_PROBE_LENGTH)
        ids = probe_ids(self.vocabulary, _KEPT_PROBE_ROWS, length)
        ids[:, : length // 2] = ids[0, : length // 2]
        blank: list[float | None] = [0.0] * length
        mask = [False, *[True] * (length - 1)]
        sequences = [
            TrainSequence(token_ids=row.tolist(), loss_mask=mask, sampling_logprobs=blank) for row in ids
        ]
        ((batch,),) = self.batches(sequences, max_tokens=_KEPT_PROBE_ROWS * length)
        return kept_bytes(self.model, lambda: self.features(batch)) // len(batch.token_ids)

    def recompute_layers(self) -> None:
        """From now on keep only the layers' inputs for the backward pass, which runs the layers again."""
        recompute(self.decoder)

    def features(self, batch: MicroBatch) -> torch.Tensor:
        """Run the decoder and return the output head's input for each prediction, [U, hidden].

        For models whose logits are not just a matrix product (scaled, soft-capped), return the logits
        themselves.
        """
        ids = torch.from_numpy(batch.token_ids).to(self.device)
        name, given, more = "input_ids", ids, dict[str, Any]()
        if batch.images:
            name, (given, more) = "inputs_embeds", self._seen(batch, ids)
        if self.shares_prefixes:
            inputs: dict[str, Any] = {name: given[None], "position_ids": self._positions(batch), **more}
            layout = AttentionLayout.of(batch, self.device)
        else:
            # Padding on the right needs no mask, because causal attention never reads later tokens.
            given = given[torch.from_numpy(batch.node_of).to(self.device)]
            inputs, layout = {name: given.reshape(*batch.blocks[0], *given.shape[1:])}, None
        with attending(layout):
            out = (self._through or self.run)(**inputs)
        return self._at_predictions(batch, out)

    def see(self, tower: ImageTower, rules: ImageRules, of_base: KeptFeatures) -> None:
        """Enable images.

        Args:
            tower: The model's vision tower.
            rules: How images are represented in a sequence.
            of_base: Shared features of the base model's tower.
        """
        self._has_mrope = has_mrope(self.model.config.model_type)
        if self._has_mrope and not (self.shares_prefixes and self.splits_head):
            raise InvalidRequestError(
                f"a model of type {self.model.config.model_type!r} cannot be trained on images, because "
                f"its decoder does not have plain attention or its output head is not a single matrix",
                hint="choose another of its family, without sliding windows",
                field="model",
            )
        self.tower, self.image_rules, self._of_base = tower, rules, of_base

    @contextmanager
    def tower_at_rest(self, rests: bool) -> Iterator[None]:
        """Set whether the tower has the untrained base model's weights; its features are then cached."""
        before, self._tower_rests = self._tower_rests, rests
        try:
            yield
        finally:
            self._tower_rests = before

    def encode_images(self, hashes: Sequence[str]) -> None:
        """Compute the uncached features of these images together, if the tower is not trained.

        Otherwise each of several threads would compute those of its own micro-batch.
        """
        if self._tower_rests and self.tower is not None and hashes:
            self._features(hashes)

    def _seen(self, batch: MicroBatch, ids: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return [N, hidden], the embeddings of a micro-batch's nodes including images.

        Also return the decoder's other inputs for them.
        """
        found = self._features([sha256 for sha256, _ in batch.images])
        for (sha256, tokens), own in zip(batch.images, found, strict=True):
            if len(own) != tokens:
                raise InvalidRequestError(
                    f"the image {sha256} has {len(own)} tokens, but a sequence has {tokens} for it",
                    hint="train on episodes as they were played, each with its own images",
                    field="images",
                )
        rows = torch.from_numpy(batch.image_rows).to(self.device)
        nodes = torch.from_numpy(batch.image_nodes).to(self.device)
        first, *deeper = torch.split(torch.cat(found)[rows], self.hidden_size, dim=-1)  # each [I, hidden]
        more: dict[str, Any] = {}
        if deeper:
            mask = torch.zeros(len(ids), dtype=torch.bool, device=self.device)
            mask[nodes] = True  # its order is that of the nodes, which ascend
            more = {"visual_pos_masks": mask[None], "deepstack_visual_embeds": deeper}
        return embedded(self.model, ids, nodes, first), more

    def _positions(self, batch: MicroBatch) -> torch.Tensor:
        """Return [1, N], or [4, 1, N]: positions, followed by those of the rotary embedding."""
        plain = torch.from_numpy(batch.positions)[None]
        if batch.rope is None:
            return plain.to(self.device)
        return torch.cat([plain, torch.from_numpy(batch.rope)])[:, None].to(self.device)

    def _rope(self, images: Sequence[ImageSpan], tokens: int) -> IntArray:
        assert self.tower is not None
        reader = self.tower.reader
        return mrope_positions(0, tokens, images, reader.grid)

    def _features(self, hashes: Sequence[str]) -> list[torch.Tensor]:
        if self.tower is None:
            raise UnsupportedPartError(
                "a sequence contains an 'image' part, but this model supports only text",
                hint="train on episodes without images",
                field="images",
            )
        if not self._tower_rests:
            return self.tower.features(hashes)
        found = kept_or_computed(self._of_base, BASE, hashes, self.tower.features)
        return [found[sha256] for sha256 in hashes]

    def run(self, **inputs: Any) -> torch.Tensor:
        """Run the decoder, or what `features` needs instead, on transformers' inputs; [..., width]."""
        found: torch.Tensor
        if self.splits_head:
            found = self.decoder(**inputs, use_cache=False).last_hidden_state
        else:
            found = self.model(**inputs, use_cache=False).logits
        return found

    def run_through(self, wrapped: Callable[..., torch.Tensor]) -> None:
        """From now on call a wrapper around `run` instead of it; one run at a time."""
        self._through = wrapped

    def features_and_states(self, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `features`, and the last hidden state at each prediction, [U, hidden].

        If the output head is one matrix, both are the same tensor.
        """
        if self.splits_head:
            features = self.features(batch)
            return features, features
        caught: list[torch.Tensor] = []
        hook = self.output_head.register_forward_pre_hook(lambda _, given: caught.append(given[0]))
        try:
            features = self.features(batch)
        finally:
            hook.remove()
        return features, self._at_predictions(batch, caught[0])

    def states(self, batch: MicroBatch) -> torch.Tensor:
        """Return the last hidden state at each prediction, [U, hidden], without logits if possible."""
        return self.features_and_states(batch)[1]

    def _at_predictions(self, batch: MicroBatch, out: torch.Tensor) -> torch.Tensor:
        predictions = torch.from_numpy(batch.predictions)
        if not self.shares_prefixes:
            predictions = torch.from_numpy(batch.first_place)[predictions]
        # [N, width], or [Q, width] where prefixes are not shared.
        rows: torch.Tensor = out.reshape(-1, out.shape[-1])
        return rows.index_select(0, predictions.to(self.device))

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """Return the logits of some rows of `features`, float32."""
        out: torch.Tensor = self.output_head(features) if self.splits_head else features
        # In float32 whatever the model's type: ratios compare logprobs that differ by less than bfloat16
        # shows.
        return out.float()

    def fingerprint(self) -> str:
        """Identify this base model: names, shapes, types and a sample of the weights' values.

        Call this before adding adapters. It uses a sample because hashing every byte of a large model takes
        longer than loading it.
        """
        digest = hashlib.sha256()
        config = self.model.config.to_dict()
        digest.update(json.dumps({k: config.get(k) for k in ("model_type", "vocab_size")}).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            flat = tensor.detach().reshape(-1)
            sample = flat[:: max(1, flat.numel() // 256)].float().cpu().contiguous()
            digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
            digest.update(sample.numpy().tobytes())
        return digest.hexdigest()


def sampled_logprobs(logits: torch.Tensor, temperatures: torch.Tensor | None) -> torch.Tensor:
    """Return log-softmax of [U, vocabulary] logits at each row's temperature; None is 1 everywhere."""
    return F.log_softmax(logits if temperatures is None else logits / temperatures[:, None], dim=-1)


def _rotates_by_length(model: Any) -> bool:
    """Return whether rotary frequencies are recomputed from each run's longest sequence, and stored."""
    kinds: list[Any] = []
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        kinds += kind.values() if isinstance(kind, dict) else [kind]
    return any(kind in {"dynamic", "longrope"} for kind in kinds)
