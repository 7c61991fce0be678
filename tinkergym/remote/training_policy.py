"""A policy that a script trains with its own loop: calls are sent in order and return futures."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, Self, TypeVar

from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError, NotFoundError
from tinkergym.remote.api import Api
from tinkergym.remote.call_queue import CallQueue
from tinkergym.remote.custom_loss import Gradient, loss_and_gradient
from tinkergym.remote.prompt_sampler import Prompt, PromptSampler
from tinkergym.schema.events import JobState
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.optimizer import MAX_GRAD_NORM, WEIGHT_DECAY
from tinkergym.schema.parsing import parse
from tinkergym.schema.policy_calls import (
    CallResult,
    ForwardBackward,
    Load,
    Logprobs,
    OptimStep,
    PolicyCall,
    Publish,
    Save,
    TokenSequence,
    images_in,
)
from tinkergym.schema.sampling import Completion, PromptScores, SampleRequest
from tinkergym.trajectory.content_parts import ImageSpan

_PAUSE_SECONDS = 0.1
"""Interval between checks whether a policy has ended."""

Sequences = Sequence[TokenSequence | Mapping[str, Any]]
_Value = TypeVar("_Value")


class TrainingPolicy:
    """A policy of the service, trained with calls. Created by `Client.create_policy`.

    Calls return futures at once and are executed in order. A call that the service acknowledged takes effect
    exactly once, even if processes die; a refused call leaves the policy unchanged. Thread-safe.
    """

    def __init__(self, api: Api, view: JobView, renderer: Renderer) -> None:
        self.job_id = view.job_id
        """The id of the job that trains it; `job_id@version` names a version, for other jobs too."""
        self.renderer = renderer
        """Turns messages into token ids and back."""
        self._api, self._view = api, view
        self._calls = CallQueue(api, self.job_id)
        self._published: Future[int] | None = None
        self._saved: Future[str] | None = None
        self._sampled_calls = itertools.count(1)
        self._sampler = PromptSampler(api.connection, renderer)

    def __repr__(self) -> str:
        return f"<TrainingPolicy {self.job_id}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error or Ctrl-C no one waits for results, which may take any time.
        self._close(wait=kind is None)

    def _close(self, *, wait: bool) -> None:
        self._calls.close(wait=wait)
        self._sampler.close()

    # --- training ---

    def forward_backward(
        self, sequences: Sequences, loss: str = "cross_entropy", **settings: Any
    ) -> Future[CallResult]:
        """Add the gradient of a loss to the gradient for the next `optim_step`.

        Args:
            sequences: What to train on; together they are one batch for the loss's mean.
            loss: "cross_entropy", "ppo", "reinforce", "importance_sampling", "cispo", "gspo" or "dro".
            **settings: Other fields of `ForwardBackward`: aggregation, clip_low, kl_coefficient, ...

        Returns:
            loss, logprobs (of the policy before the update) and metrics.

        Raises:
            InvalidRequestError: A setting or sequence is invalid; nothing was sent.
        """
        call = parse(ForwardBackward, {"sequences": _read(sequences), "loss": loss, **settings})
        return self._add(call, lambda result: result)

    def forward_backward_custom(self, sequences: Sequences, gradient: Gradient) -> Future[CallResult]:
        """Like `forward_backward` with a custom loss: two calls, and no code on the server.

        Waits for the logprobs and calls your function in this thread; the second call is not waited for.

        Args:
            sequences: What to train on.
            gradient: A function from the logprobs to the loss and its gradient with respect to them.

        Raises:
            NonFiniteLossError: The function returned a loss that is NaN or infinite.
            InvalidRequestError: It returned something else than a loss and a finite number for each logprob.
                In both cases no gradient was added.
        """
        read = _read(sequences)
        logprobs = self.logprobs(read).result()
        loss, numbers = loss_and_gradient(gradient(logprobs), logprobs)
        weighted = []
        for own, of_loss in zip(read, map(iter, numbers), strict=True):
            # The linear loss is minus the sum of advantage times logprob, so its gradient is the given one.
            advantage = [-next(of_loss) if trained else 0.0 for trained in own.trained]
            weighted.append(own.model_copy(update={"advantage": advantage}))
        call = parse(ForwardBackward, {"sequences": weighted, "loss": "linear"})
        return self._add(call, lambda result: result.model_copy(update={"loss": loss}))

    def optim_step(
        self,
        learning_rate: float,
        *,
        max_grad_norm: float = MAX_GRAD_NORM,
        weight_decay: float = WEIGHT_DECAY,
    ) -> Future[CallResult]:
        """Apply the gradient with AdamW and clear it."""
        step = {"learning_rate": learning_rate, "max_grad_norm": max_grad_norm, "weight_decay": weight_decay}
        return self._add(parse(OptimStep, step), lambda result: result)

    def logprobs(self, sequences: Sequences) -> Future[list[list[float]]]:
        """Compute the logprobs of the tokens with `loss_mask` True, in nats, per sequence."""
        call = parse(Logprobs, {"sequences": _read(sequences)})
        return self._add(call, lambda result: result.logprobs or [])

    def publish(self) -> Future[int]:
        """Make the current weights available to `sample`; returns the version's number."""
        self._published = self._add(Publish(), lambda result: result.version or 0)
        return self._published

    def save(self) -> Future[str]:
        """Write a checkpoint with optimizer state; returns its name, `job-ID@version`."""
        self._saved = self._add(Save(), lambda result: result.policy)
        return self._saved

    def load(self, policy: str, *, with_optimizer: bool = True) -> Future[None]:
        """Continue from a saved version of this policy or another with the same model and adapter.

        Args:
            policy: `job-...@40`, `policy-...@step:40`, `job-...@best` or `@latest`. A name without a number
                means the version that is stored now; a `save` made before is waited for.
            with_optimizer: Whether to load its optimizer state; False starts with a fresh optimizer.

        Raises:
            NotFoundError: A name without a number: there is no such version.
        """
        ref = PolicyRef.parse(policy)
        if ref.version is None:
            if self._saved is not None:
                wait([self._saved])
            ref = _newest_saved(self._api, ref)
        call = parse(Load, {"policy": str(ref), "with_optimizer": with_optimizer})
        return self._add(call, lambda result: None)

    def copy(self, *, with_optimizer: bool = True) -> TrainingPolicy:
        """Return a new policy with the weights that this one has after the previous calls.

        Saves a checkpoint, and waits until the new policy has a slot and the weights.

        Args:
            with_optimizer: Whether to copy the optimizer state; False starts with a fresh optimizer.
        """
        saved = self.save().result()
        spec = self._view.spec.model_copy(update={"initial_policy": saved})
        view = self._api.create_job(spec, idempotency_key=uuid.uuid4().hex)
        copied = TrainingPolicy(self._api, view, self.renderer)
        # When its first call is done it has the weights, and no longer needs the checkpoint.
        first = copied.load(saved) if with_optimizer else copied.publish()
        first.result()
        return copied

    # --- sampling ---

    def sample(self, prompt: Prompt, *, seed: int = 0, **settings: Any) -> list[Completion]:
        """Sample completions of one prompt from the version that was published last.

        Args:
            prompt: Token ids, messages, or a text, which becomes a user message.
            seed: In float32 the same seed gives the same completions of the same version, up to ties within
                rounding. In bfloat16 use `sample_many` with `deterministic=True`.
            **settings: As in `sample_many`: n, max_tokens, temperature, stop, top_logprobs, ...

        Raises:
            InvalidRequestError: A setting is out of range; nothing was sent.
            PolicyVersionGoneError: As in `sample_many`.
        """
        n = settings.get("n", 1)
        _require_count(n)
        return self.sample_many([prompt], seeds=[seed * n + i for i in range(n)], **settings)[0]

    def sample_many(
        self,
        prompts: Sequence[Prompt],
        *,
        n: int = 1,
        seeds: Sequence[int] | None = None,
        max_tokens: int = 64,
        temperature: float = 1.0,
        stop: str | Sequence[str] = (),
        top_logprobs: int = 0,
        prompt_logprobs: bool = False,
        top_prompt_logprobs: int = 0,
        deterministic: bool = False,
        **settings: Any,
    ) -> list[list[Completion]]:
        """Sample completions of several prompts in one call, which is faster than one call for each.

        Args:
            prompts: Each as in `sample`.
            n: Completions of each prompt.
            seeds: One for each completion, those of the first prompt first; None counts from 0.
            max_tokens: The longest completion.
            temperature: 0 takes the likeliest token.
            stop: One or several texts; a completion ends with the token that completes one of them.
                `Completion.text`, which is always set here, ends before it.
            top_logprobs: At each sampled token, return the logprobs of this many of the likeliest tokens, at
                most 20.
            prompt_logprobs: Return the logprobs of the prompts' tokens.
            top_prompt_logprobs: With them, those of this many likeliest tokens in each place, at most 20.
            deterministic: Sample all prompts as one separate batch: the same call gives the same bits, down
                to the last digit of a logprob, whatever else the service does. Other requests wait meanwhile.
            **settings: Other fields of `SampleRequest`: top_p, top_k, structured, prompt_entropies.

        Returns:
            `n` completions per prompt.

        Raises:
            InvalidRequestError: A setting is out of range; nothing was sent.
            PolicyVersionGoneError: A newer version was published meanwhile, or the service restarted after
                further training and a `save`; publish again.
        """
        _require_count(n)
        seeds = range(len(prompts) * n) if seeds is None else seeds
        if len(seeds) != len(prompts) * n:
            raise InvalidRequestError(
                f"{len(prompts)} prompts with {n} completions each need {len(prompts) * n} seeds, "
                f"not {len(seeds)}",
                field="seeds",
            )
        if not prompts:
            return []
        version = self._view.policy_version or None
        if self._published is not None:
            version = self._published.result()
        call = next(self._sampled_calls)
        of_prompt = {"prompt_logprobs": prompt_logprobs, "top_prompt_logprobs": top_prompt_logprobs}
        of_prompt["prompt_entropies"] = settings.pop("prompt_entropies", False)
        wanted = {
            "policy": self.job_id,
            # After a restart the newest version may be an older one for a moment.
            "policy_version": version,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "stop_ids": list(self.renderer.stop_ids),
            "stop": stop,
            "top_logprobs": top_logprobs,
            **settings,
        }
        requests = [
            parse(
                SampleRequest,
                {
                    **wanted,
                    "request_id": f"{call}/{place * n + number}",
                    "prompt_ids": ids,
                    **({"images": images} if images else {}),
                    "seed": seeds[place * n + number],
                    **(of_prompt if number == 0 else {}),  # the same for all completions of a prompt
                },
            )
            for place, (ids, images) in enumerate(map(self._sampler.read, prompts))
            for number in range(n)
        ]
        sampled = self._sampler.completions(requests, together=deterministic)
        found = [one.model_copy(update={"text": self.text(one)}) for one in sampled]
        return [_with_prompt(found[first : first + n]) for first in range(0, len(found), n)]

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return a prompt's token ids, as the model's chat template writes them."""
        return self._sampler.read(prompt)[0]

    def prompt_images(self, prompt: Prompt) -> list[ImageSpan]:
        """Return the positions of the messages' images in their `prompt_ids`, for a `TokenSequence`.

        Sends those that the service does not have.
        """
        return self._sampler.read(prompt)[1]

    def text(self, completion: Completion) -> str:
        """Return a completion's text, without a stop string that ended it."""
        if completion.text is not None:
            return completion.text
        return self.renderer.decode_answer(completion.token_ids)

    # --- ending ---

    def close(self) -> None:
        """Wait for the calls made so far and stop. The policy stays, saved, and another script can open it.

        At the end of a `with` block that raises, nothing is waited for.
        """
        self._close(wait=True)

    def cancel(self) -> None:
        """End the policy: its slot is freed, and its last checkpoint is kept.

        Calls that are not done fail with `JobFailedError`; wait for their futures first if they matter.
        """
        self._api.cancel(self.job_id)
        self.close()

    def delete(self) -> int:
        """End the policy and delete it with its checkpoints; returns the number of freed bytes.

        Raises:
            ConflictError: An unfinished job uses it. The policy has ended, and its checkpoints are kept.
        """
        self.cancel()
        while not self.state.final:
            time.sleep(_PAUSE_SECONDS)
        return self._api.delete(self.job_id).bytes

    def _add(self, call: PolicyCall, read: Callable[[CallResult], _Value]) -> Future[_Value]:
        # First: the service refuses a call whose images it does not have.
        self._sampler.images.send(images_in(call))
        return self._calls.add(call, read)

    @property
    def state(self) -> JobState:
        """State of the policy: queued, running, waiting for a call, or ended."""
        return self._api.job(self.job_id).state


def _with_prompt(completions: list[Completion]) -> list[Completion]:
    """Copy what is known of a prompt from its first completion to the others."""
    names = (*PromptScores.model_fields, "prompt_entropies")
    of_prompt = {name: getattr(completions[0], name) for name in names}
    return [one.model_copy(update=of_prompt) for one in completions]


def _sequence(own: TokenSequence | Mapping[str, Any]) -> TokenSequence:
    return own if isinstance(own, TokenSequence) else parse(TokenSequence, own)


def _read(sequences: Sequences) -> list[TokenSequence]:
    return [_sequence(own) for own in sequences]


def _require_count(n: object) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InvalidRequestError(f"must be a whole number above 0, not {n!r:.80}", field="n")


def _newest_saved(api: Api, ref: PolicyRef) -> PolicyRef:
    """Return a reference with the number of the version that another name means now."""
    found = api.find_policy(str(ref))
    version = found.version
    if version is None and found.kept:
        version = found.kept[-1]
    if version is None:
        raise NotFoundError(
            f"{ref} has no saved version", hint="save it first, or name another policy", field="policy"
        )
    return ref.at(version)
