"""A policy that a script trains with its own loop: calls are sent in order and return futures."""

from __future__ import annotations

import operator
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, Self, TypeVar

from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError, NotFoundError, from_wire
from tinkergym.messages import Message, observation_messages
from tinkergym.remote.api import Api
from tinkergym.remote.ask import sampled_together
from tinkergym.remote.call_queue import PATIENCE_SECONDS, CallQueue
from tinkergym.remote.custom_loss import Gradient, loss_and_gradient
from tinkergym.remote.http_sampler import HttpSampler
from tinkergym.remote.image_upload import ImageUpload
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
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest
from tinkergym.trajectory.content_parts import ImageSpan

_PAUSE_SECONDS = 0.1
"""Interval between checks whether a policy has ended."""

Prompt = str | Sequence[Message] | Sequence[int]
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
        self._lock = threading.Lock()
        self._published: Future[int] | None = None
        self._saved: Future[str] | None = None
        self._sampled_calls = 0
        self._sampler: HttpSampler | None = None
        self._images = ImageUpload(api.connection, "/v1/images")

    def __repr__(self) -> str:
        return f"<TrainingPolicy {self.job_id}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error or Ctrl-C no one waits for results, which may take any time.
        self._close(wait=kind is None)

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
        published = self._add(Publish(), lambda result: result.version or 0)
        self._published = published
        return published

    def save(self) -> Future[str]:
        """Write a checkpoint with optimizer state; returns its name, `job-ID@version`."""
        saved = self._add(Save(), lambda result: result.policy)
        self._saved = saved
        return saved

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
            ref = self._definite(ref)
        call = parse(Load, {"policy": str(ref), "with_optimizer": with_optimizer})
        return self._add(call, lambda result: None)

    def copy(self, *, with_optimizer: bool = True) -> TrainingPolicy:
        """Return a new policy with the weights that this one has after the previous calls.

        Saves a checkpoint, and waits until the new policy has a place and the weights.

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
            deterministic: Sample all prompts as one separate batch: the same call gives the same bits, down
                to the last digit of a logprob, whatever else the service does. Other requests wait meanwhile.
            **settings: Other fields of `SampleRequest`: top_p, top_k, structured.

        Returns:
            `n` completions per prompt.

        Raises:
            InvalidRequestError: A setting is out of range; nothing was sent.
            PolicyVersionGoneError: A newer version was published meanwhile, or the service restarted after
                further training and a `save`; publish again.
        """
        _require_count(n)
        if seeds is None:
            seeds = range(len(prompts) * n)
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
        with self._lock:
            self._sampled_calls += 1
            call = self._sampled_calls
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
                    # They are the same for all completions of a prompt.
                    "prompt_logprobs": prompt_logprobs and number == 0,
                },
            )
            for place, (ids, images) in enumerate(map(self._read_prompt, prompts))
            for number in range(n)
        ]
        found = self._completions(requests, together=deterministic)
        return [_with_prompt(found[first : first + n]) for first in range(0, len(found), n)]

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return a prompt's token ids, as the model's chat template writes them."""
        return self._read_prompt(prompt)[0]

    def prompt_images(self, prompt: Prompt) -> list[ImageSpan]:
        """Return the positions of the messages' images in their `prompt_ids`, for a `TokenSequence`.

        Sends those that the service does not have.
        """
        return self._read_prompt(prompt)[1]

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
        """End the policy: its place is freed, and its last checkpoint is kept.

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

    # --- inside ---

    def _close(self, *, wait: bool) -> None:
        self._calls.close(wait=wait)
        if self._sampler is not None:
            self._sampler.close()

    def _definite(self, ref: PolicyRef) -> PolicyRef:
        """Return a reference with the number of the version that another name means now."""
        if self._saved is not None:
            wait([self._saved])
        found = self._api.find_policy(str(ref))
        version = found.version
        if version is None and found.kept:
            version = found.kept[-1]
        if version is None:
            raise NotFoundError(
                f"{ref} has no saved version", hint="save it first, or name another policy", field="policy"
            )
        return ref.at(version)

    def _read_prompt(self, prompt: Prompt) -> tuple[list[int], list[ImageSpan]]:
        if isinstance(prompt, str):
            return list(self.renderer.start([{"role": "user", "content": prompt}])), []
        if not all(isinstance(part, Mapping) for part in prompt):
            return _token_ids(prompt), []
        messages: list[Message] = [dict(message) for message in prompt]  # type: ignore[arg-type, misc]
        if all(isinstance(message.get("content"), str) for message in messages):
            return list(self.renderer.start(messages)), []
        messages = observation_messages(messages)
        ids = self.renderer.start(messages)
        images = self.renderer.spans(ids, messages)
        # Now: pixels are only referenced by these messages.
        self._images.send(image.sha256 for image in images)
        return list(ids), images

    def _add(self, call: PolicyCall, read: Callable[[CallResult], _Value]) -> Future[_Value]:
        self._images.send(images_in(call))
        return self._calls.add(call, read)

    @property
    def state(self) -> JobState:
        """State of the policy: queued, running, waiting for a call, or ended."""
        return self._api.job(self.job_id).state

    def _completions(self, requests: list[SampleRequest], *, together: bool) -> list[Completion]:
        found = self._sampled_together(requests) if together else self._sampled(requests)
        return [one.model_copy(update={"text": self.text(one)}) for one in found]

    def _sampled_together(self, requests: list[SampleRequest]) -> list[Completion]:
        self._images.send(image.sha256 for request in requests for image in request.images)
        answers = sampled_together(self._api.connection, requests, patience_seconds=PATIENCE_SECONDS)
        return [answers[request.request_id] for request in requests]

    def _sampled(self, requests: list[SampleRequest]) -> list[Completion]:
        with self._lock:
            if self._sampler is None:
                self._sampler = HttpSampler(
                    self._api.connection,
                    "/v1/sample",
                    images=self._images,
                    patience_seconds=PATIENCE_SECONDS,
                )
            sampler = self._sampler
        arrived: queue.Queue[Completion | SampleFailure] = queue.Queue()

        def deliver(answers: Sequence[Completion | SampleFailure]) -> None:
            for answer in answers:
                arrived.put(answer)

        sampler.submit(requests, deliver)
        found: dict[str, Completion] = {}
        while len(found) < len(requests):
            one = arrived.get()
            if isinstance(one, SampleFailure):
                raise from_wire(one.error.model_dump())
            found[one.request_id] = one
        return [found[request.request_id] for request in requests]


def _token_ids(prompt: Sequence[Any]) -> list[int]:
    """Convert a prompt of integers, which may be NumPy's."""
    ids = []
    for place, token in enumerate(prompt):
        try:
            ids.append(operator.index(token))
        except TypeError:
            raise InvalidRequestError(
                f"element {place} of the prompt is {token!r}, which is not a token id",
                hint="pass a text, a list of messages, or a list of integers",
                field="prompt",
            ) from None
    return ids


def _with_prompt(completions: list[Completion]) -> list[Completion]:
    """Copy a prompt's logprobs from its first completion to the others."""
    of_prompt = completions[0].prompt_logprobs
    if of_prompt is None:
        return completions
    return [one.model_copy(update={"prompt_logprobs": of_prompt}) for one in completions]


def _sequence(own: TokenSequence | Mapping[str, Any]) -> TokenSequence:
    return own if isinstance(own, TokenSequence) else parse(TokenSequence, own)


def _read(sequences: Sequences) -> list[TokenSequence]:
    return [_sequence(own) for own in sequences]


def _require_count(n: object) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InvalidRequestError(f"must be a whole number above 0, not {n!r:.80}", field="n")
