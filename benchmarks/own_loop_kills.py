"""A policy trained by calls, undisturbed and with a kill at 20 points; the weights must be bitwise equal.

Every call is sent twice, and once more when its result is there, as a client does that lost a response. At
each point a process of the service is killed with -9 at one of four moments. Each optimizer step's gradient
norm is compared too, so that a difference shows at the step where it begins.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

import tinkergym as tg
from benchmarks.common import Figure, Service, service, write_result
from benchmarks.determinism import kill_if_there
from tinkergym.schema.events import JobState
from tinkergym.schema.policy_calls import (
    CallResult,
    ForwardBackward,
    NumberedCall,
    OptimStep,
    PolicyCall,
    Publish,
    Save,
    TokenSequence,
)

POINTS = 20
UPDATES = POINTS + 2
MOMENTS = ("forward_backward acknowledged", "forward_backward done", "optim_step acknowledged", "published")
VICTIMS = ("pool worker", "pool worker", "gateway", "pool worker", "scheduler host")
CHECKPOINT_EVERY = 7
"""Calls; four per update, so that checkpoints fall on each of its calls in turn."""
_PATIENCE_SECONDS = 120.0
_PAUSE_SECONDS = 0.2


def measure(points: int = POINTS) -> list[Figure]:
    """Train one policy undisturbed and another with a kill at each point, in one service each."""
    faults = {
        update: (MOMENTS[update % len(MOMENTS)], VICTIMS[update % len(VICTIMS)]) for update in range(points)
    }
    clean, clean_norms = _train({})
    killed, killed_norms = _train(faults)
    same_norms = sum(one == other for one, other in zip(clean_norms, killed_norms, strict=True))
    figure = Figure(
        what=f"a policy trained by {UPDATES} updates, every call sent three times, killed at {points} points",
        asked="the weights of the undisturbed run, to the bit",
        measured=f"{'the same' if clean == killed else 'others'}; {same_norms} of {UPDATES} gradients agree",
        reached=clean == killed and same_norms == UPDATES,
    )
    details = {
        "sha256": {"undisturbed": clean, "killed": killed},
        "kills": [f"update {update}: {moment}, {victim}" for update, (moment, victim) in faults.items()],
    }
    return write_result("own_loop_kills", [figure], details)


def _train(faults: dict[int, tuple[str, str]]) -> tuple[str, list[float]]:
    """Return the hash of the final weights, and the gradient norm of each update."""
    with service() as running, tg.Client(running.url, running.api_key, patience_seconds=120) as client:
        policy = client.create_policy(seed=3, checkpoint_every=CHECKPOINT_EVERY)
        policy.close()  # its calls are sent manually here
        caller = _Caller(running, policy.job_id)
        norms = []
        for update in range(UPDATES):
            moment, victim = faults.get(update, ("", ""))

            def strike(now: str, moment: str = moment, victim: str = victim) -> None:
                if now == moment:
                    # It may still be starting, at the first call or after the previous kill.
                    while not kill_if_there(running, victim):
                        time.sleep(_PAUSE_SECONDS)
                    print(f"{moment}: {victim} killed", flush=True)

            learned = caller.send(ForwardBackward(sequences=_sequences(update)))
            strike(MOMENTS[0])
            caller.result(learned)
            strike(MOMENTS[1])
            stepped = caller.send(OptimStep(learning_rate=1e-2))
            strike(MOMENTS[2])
            norms.append(caller.result(stepped).metrics["grad_norm"])
            published = caller.send(Publish())
            strike(MOMENTS[3])
            caller.result(published)
        saved = caller.result(caller.send(Save()))
        checkpoints = client.job(policy.job_id).checkpoints()
        policy.cancel()
        return next(one.sha256 for one in checkpoints if one.policy_version == saved.version), norms


def _sequences(update: int) -> list[TokenSequence]:
    return [
        TokenSequence(token_ids=[1 + update, 5, 9 + number, 13, 17 + 2 * number, 21]) for number in range(3)
    ]


class _Caller:
    """Sends numbered calls, each three times, whatever dies meanwhile."""

    def __init__(self, running: Service, policy_id: str) -> None:
        self._path = f"/v1/policies/{policy_id}/calls"
        self._bodies: dict[int, bytes] = {}
        self._http = httpx.Client(
            base_url=running.url,
            headers={"Authorization": f"Bearer {running.api_key}", "Content-Type": "application/json"},
            timeout=30.0,
            trust_env=False,
        )

    def send(self, call: PolicyCall) -> int:
        """Get a call acknowledged twice; return its number."""
        seq = len(self._bodies) + 1
        self._bodies[seq] = NumberedCall(seq=seq, call=call).model_dump_json().encode()
        for _ in range(2):
            self._post(seq)
        return seq

    def result(self, seq: int) -> CallResult:
        """Wait for a call's result, and send the call once more."""
        for answer in self._tries("GET", f"{self._path}/{seq}?wait_seconds=10"):
            if answer.get("result") is not None:
                result = CallResult.model_validate(answer["result"])
                if result.error is not None:
                    raise RuntimeError(f"call {seq} was refused: {result.error.message}")
                self._post(seq)
                return result
            if JobState(answer["state"]).final:
                raise RuntimeError(f"the policy ended before call {seq}: {answer['reason']}")
        raise AssertionError("the tries do not end")

    def _post(self, seq: int) -> None:
        next(self._tries("POST", self._path, self._bodies[seq]))

    def _tries(self, method: str, path: str, body: bytes | None = None) -> Iterator[dict[str, Any]]:
        """Yield the service's responses, retrying while parts of it are down."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                response = self._http.request(method, path, content=body)
            except httpx.TransportError:
                response = None
            if response is not None and response.status_code == 200:
                yield json.loads(response.content)
                deadline = time.monotonic() + _PATIENCE_SECONDS
            elif response is not None and response.status_code < 500:
                raise RuntimeError(f"{method} {path}: {response.status_code} {response.text}")
            elif time.monotonic() > deadline:
                raise RuntimeError(f"{method} {path}: no answer for {_PATIENCE_SECONDS:g} s")
            else:
                time.sleep(_PAUSE_SECONDS)
