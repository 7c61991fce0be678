"""`python -m backend.engines.vllm.host FD`: the process that runs vLLM's `AsyncLLM`.

Messages are JSON lines over the socket FD. `vllm_engine.py` at the other end tracks all state and restarts
this process when it ends; when the socket closes, this process and vLLM's end too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from backend.engines.vllm.collected_outputs import Collected
from backend.engines.vllm.files import hash_of_what_is_read
from backend.engines.vllm.host_sleep import HostSleep
from backend.engines.vllm.weight_turns import Rooms
from backend.processes.children import die_with_parent
from backend.processes.exhaustion import end_if_exhausted, end_when_exhausted

_log = logging.getLogger(__name__)
# asyncio's own limit of 64 KiB is less than a long prompt in JSON.
_LONGEST_LINE = 1 << 30
_WORKER = "backend.engines.vllm.worker"
_SEED = "tinkergym_seed"
"""As read by `worker.py`, which is only imported in vLLM's process."""
_BASE = 0
"""The key of the base model; adapters and full policies have keys from 1."""
_PLAIN, _ADAPTED = 0, -1
"""Rooms of the base model's weights, without and with adapters; a full policy's room is its key.

vLLM's CPU kernels treat "no adapter" (-1) as the last adapter slot (0.32.0): in a batch with adapters, the
base model would use someone's adapter once all slots are taken. It therefore gets an adapter of zeros there.
"""
_CANARY_DRIFT = 1e-3
"""Tolerated change of the canary's logprob between two requests with the same weights."""
_NOTHING_KEY = 1 << 30
"""Far above the keys of policies, which count from 1."""
_LOOK_SECONDS = 0.5
_NOBODY = -1
"""While weights are being exchanged."""

Message = dict[str, Any]
_GONE: Message = {"gone": True}
"""The result for a request whose policy is not loaded."""


_CANARY: Message = {
    "id": "canary",
    "policy": _BASE,
    "prompt": [1],
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "seed": 0,
    "max_tokens": 1,
    "stop": [],
    "salt": "canary",
    "structured": None,
    "stop_strings": [],
    "top_logprobs": 0,
    "prompt_logprobs": None,
    "stream": False,
    "images": [],
}


class Host:
    """Processes messages with vLLM."""

    def __init__(
        self,
        engine: AsyncLLM,
        send: Callable[[Message], None],
        *,
        model_directory: Path,
        sees: bool = False,
        ranks: int = 1,
    ) -> None:
        self._engine = engine
        self._images = _images_of(engine) if sees else None
        self._send, self._ranks = send, ranks
        self._model_directory = model_directory
        self._adapters: dict[int, LoRARequest] = {}
        self._full: dict[int, Message] = {}
        self._uses: Counter[int] = Counter()
        self._dropped: set[int] = set()
        self._samples: dict[int, asyncio.Task[None]] = {}
        self._rooms = Rooms(self._exchange, room=_PLAIN)
        self._resident = _BASE
        self._nothing: LoRARequest | None = None
        self._canary_logprob: float | None = None
        self._sleep = HostSleep(engine)
        self._hashing = asyncio.Lock()
        self._others: set[asyncio.Task[None]] = set()

    async def prepare(self, policies: list[Message]) -> None:
        """Replace vLLM's sampler, load the policies, and check that the engine responds."""
        await self._engine.collective_rpc("tinkergym_draw_by_position")
        for policy in policies:
            await self._load(policy)
        answer = await self._canary({})
        if "error" in answer:
            raise RuntimeError(answer["error"])

    def handle(self, message: Message) -> None:
        """Start to process a message."""
        kind = message["do"]
        if kind == "abort":
            for number in message["ids"]:
                if number in self._samples:
                    self._samples[number].cancel()
            return
        work = {
            "sample": self._sample,
            "together": self._together,
            "load": self._load,
            "drop": self._drop,
            "canary": self._canary,
            "sleep": self._sleep.begin,
            "wake": self._sleep.end,
        }[kind]
        task = asyncio.ensure_future(self._answer(message, work))
        if kind in {"sample", "together"}:
            requests = message.get("requests", [message])
            # Before the task runs: a `drop` that is read next must wait for these requests.
            self._use(requests)
            self._samples[message["id"]] = task
            task.add_done_callback(lambda _: self._sampled(message["id"], requests))
        else:
            # asyncio itself only keeps weak references to its tasks.
            self._others.add(task)
            task.add_done_callback(self._others.discard)

    async def _answer(self, message: Message, work: Callable[[Message], Awaitable[Message]]) -> None:
        try:
            answer = await work(message)
        except asyncio.CancelledError:
            return
        except EngineDeadError:
            # Nothing more will come from here; the other end sends it again to the next process.
            os._exit(1)
        except Exception as error:
            _log.exception("%s failed", message["do"])
            end_if_exhausted(error)
            answer = {"error": f"{type(error).__name__}: {error}"}
        self._send({"id": message["id"], **answer})

    # --- sampling ---

    async def _sample(self, message: Message) -> Message:
        await self._sleep.end()
        if not self._knows(message):
            return _GONE
        room = self._room(message["policy"])
        async with self._rooms.hold(room):
            added = await self._try_add(message, room)
            return added if isinstance(added, dict) else await self._collect(added, message)

    def _sampled(self, number: int, requests: list[Message]) -> None:
        self._samples.pop(number, None)
        self._used(requests)

    async def _together(self, message: Message) -> Message:
        """Sample as one batch: nothing is computed before all requests have arrived, and no others join."""
        await self._sleep.end()
        answers = {r["id"]: _GONE for r in message["requests"] if not self._knows(r)}
        requests = [r for r in message["requests"] if r["id"] not in answers]
        while requests:
            room = self._room(requests[0]["policy"])
            count = next(
                (i for i, r in enumerate(requests) if self._room(r["policy"]) != room), len(requests)
            )
            async with self._rooms.hold(room, alone=True):
                answers |= await self._alone(requests[:count], room)
            del requests[:count]
        return {"answers": [answers[request["id"]] for request in message["requests"]]}

    async def _alone(self, requests: list[Message], room: int) -> dict[int, Message]:
        """Sample requests of one room, in which nothing else is, as one batch; return the answers by id."""
        adding = asyncio.ensure_future(self._add_all(requests, room))
        answers: dict[int, Message] = {}
        try:
            # Shielded, because it is unknown whether vLLM has a request whose adding was cancelled.
            added = await asyncio.shield(adding)
            for request, one in zip(requests, added, strict=True):
                answers[request["id"]] = one if isinstance(one, dict) else await self._collect(one, request)
        except BaseException:
            # The sender is gone, or one failed: the rest must not be computed with the next batch.
            await self._abort((await adding)[len(answers) :])
            raise
        return answers

    async def _add_all(self, requests: list[Message], room: int) -> list[Any]:
        """Add requests while nothing is computed; return each one's queue, or an error as `_try_add` does."""
        added: list[Any] = []
        try:
            await self._engine.pause_generation(mode="keep", clear_cache=False)
            for request in requests:
                added.append(await self._try_add(request, room))
        except BaseException:
            await self._abort(added)
            raise
        finally:
            await self._engine.resume_generation()
        return added

    async def _abort(self, added: list[Any]) -> None:
        for one in added:
            if not isinstance(one, dict):
                await self._engine.abort(one.request_id, internal=True)
                one.close()

    async def _try_add(self, message: Message, room: int) -> Any:
        """Return the request's queue, or an error if vLLM refuses its structured output."""
        try:
            return await self._add(message, room)
        except (ValueError, VLLMClientError) as error:
            if not message["structured"]:
                raise
            return {"invalid": str(error)}

    async def _add(self, message: Message, room: int) -> Any:
        return await self._engine.add_request(
            f"r{message['id']}",
            await self._input(message),
            _settings_of(message),
            lora_request=self._adapter(message["policy"], room),
        )

    async def _input(self, message: Message) -> Any:
        if self._images is not None and message["images"]:
            return await self._images.input(message)
        return tokens_input(message["prompt"], cache_salt=message["salt"])

    def _adapter(self, key: int, room: int) -> LoRARequest | None:
        if key == _BASE or key in self._full:
            return self._nothing if room == _ADAPTED else None
        return self._adapters[key]

    async def _collect(self, queue: Any, message: Message) -> Message:
        found = Collected(message, self._model_directory)
        try:
            while not found.complete:
                # `get_nowait` first saves a switch between tasks while vLLM is ahead.
                found.take(queue.get_nowait() or await queue.get())
                if message["stream"] and (part := found.part()) is not None:
                    self._send({"id": message["id"], "part": part})
        except asyncio.CancelledError:
            await self._engine.abort(queue.request_id, internal=True)
            raise
        finally:
            queue.close()
        if not found.reason:
            # A stop string, which vLLM does not know about.
            await self._engine.abort(queue.request_id, internal=True)
        return found.answer()

    # --- policies ---

    async def _load(self, message: Message) -> Message:
        await self._sleep.end()
        key = message["policy"]
        if "shared" in message:
            self._full[key] = message
        else:
            # vLLM compares adapters by name and caches by number: neither is ever reused.
            if self._nothing is None:
                self._nothing = LoRARequest("nothing", _NOTHING_KEY, message["nothing"])
            request = LoRARequest(f"{message['name']}#{key}", key, message["path"])
            await self._engine.add_lora(request)
            self._adapters[key] = request
        # In a thread: requests do not wait for it. One at a time: torch's cache of a GPU's opened memory
        # fails if it is asked for a piece that is being released.
        async with self._hashing:
            return {"sha256": await _hash_of(self._engine, self._ranks, message)}

    def _knows(self, request: Message) -> bool:
        """Return whether the request's policy is loaded; it then stays until `_used`."""
        key = request["policy"]
        return key == _BASE or key in self._adapters or key in self._full

    def _use(self, requests: list[Message]) -> None:
        self._uses.update(request["policy"] for request in requests)

    def _used(self, requests: list[Message]) -> None:
        self._uses.subtract(request["policy"] for request in requests)
        for key in {request["policy"] for request in requests}:
            self._forget_unused(key)

    async def _drop(self, message: Message) -> Message:
        self._dropped.add(message["policy"])
        self._forget_unused(message["policy"])
        return {}

    def _forget_unused(self, key: int) -> None:
        # A dropped policy that is still sampled goes with the last request for it.
        if key not in self._dropped or self._uses[key] > 0:
            return
        self._dropped.discard(key)
        del self._uses[key]
        self._full.pop(key, None)
        if self._adapters.pop(key, None) is not None:
            removal = asyncio.ensure_future(self._remove(key))
            self._others.add(removal)
            removal.add_done_callback(self._others.discard)
        else:
            self._send({"dropped": key})

    async def _remove(self, key: int) -> None:
        with suppress(EngineDeadError):
            await self._engine.remove_lora(key)
        self._send({"dropped": key})

    def _room(self, key: int) -> int:
        if key in self._full:
            return key
        return _ADAPTED if self._adapters else _PLAIN

    async def _exchange(self, room: int) -> None:
        # The rooms with and without adapters have the same weights, the base model's.
        resident = max(room, _BASE)
        if resident == self._resident:
            return
        policy = {"policy": _BASE} if resident == _BASE else self._full[resident]
        # Until all of them have arrived: after an error the next request exchanges them again.
        self._resident = _NOBODY
        # The requester may be gone before they are read, and they must stay until then.
        self._use([policy])
        try:
            await self._engine.collective_rpc(
                "tinkergym_load_weights", args=(policy.get("shared"), policy.get("names", []))
            )
        finally:
            self._used([policy])
        # Each request's cache is salted by its policy. This drops the states of weights that are gone, which
        # only take space.
        await self._engine.reset_prefix_cache()
        if self._images is not None:
            # The worker dropped its cached images, which the scheduler would still rely on.
            await self._engine.reset_encoder_cache()
        self._resident = resident

    # --- health ---

    async def _canary(self, message: Message) -> Message:
        """Sample one token; while a batch is closed, check vLLM's loop instead."""
        with self._rooms.join() as room:
            if room is None or self._sleep.has_begun:
                await self._engine.get_weight_version()
                return {"alive": True}
            answer = await self._collect(await self._add(_CANARY, room), _CANARY)
        # In a full policy's room there is nothing to compare with: its logprob may be any.
        if "error" in answer or room > _PLAIN:
            return answer if "error" in answer else {"alive": True}
        logprob = answer["logprobs"][0]
        if self._canary_logprob is None:
            self._canary_logprob = logprob
        # Not `>`: NaN has to fail, too.
        if not abs(logprob - self._canary_logprob) <= _CANARY_DRIFT:
            return {"error": f"the canary's logprob changed from {self._canary_logprob} to {logprob}"}
        return {"alive": True}

    async def watch(self) -> None:
        """End this process when vLLM's has ended; some callers of vLLM are never notified."""
        while not self._engine.errored:
            await asyncio.sleep(_LOOK_SECONDS)
        os._exit(1)


async def _hash_of(engine: AsyncLLM, ranks: int, policy: Message) -> str:
    """Return the hash of the weights that every rank reads."""
    if ranks == 1:
        return await asyncio.to_thread(hash_of_what_is_read, policy)
    found: list[str] = await engine.collective_rpc("tinkergym_sha256", args=(policy,))
    for rank, sha256 in enumerate(found):
        if sha256 != found[0]:
            raise RuntimeError(f"rank {rank} of {len(found)} read other weights than rank 0")
    return found[0]


def _settings_of(message: Message) -> SamplingParams:
    """Return vLLM's settings of a request."""
    return SamplingParams(
        temperature=message["temperature"],
        top_p=message["top_p"],
        top_k=message["top_k"],
        extra_args={_SEED: message["seed"]},
        max_tokens=message["max_tokens"],
        stop_token_ids=message["stop"],
        # Only the request's `stop` ends a completion: an end token that is not in `stop` is an ordinary
        # token.
        ignore_eos=True,
        logprobs=message["top_logprobs"],
        prompt_logprobs=message["prompt_logprobs"],
        detokenize=False,
        # Token by token if they are searched for stop strings, by the code that searches them in the
        # transformers engine too: vLLM's own detokenizer omits special tokens.
        output_kind=RequestOutputKind.DELTA
        if message["stop_strings"] or message["stream"]
        else RequestOutputKind.FINAL_ONLY,
        structured_outputs=StructuredOutputsParams(**message["structured"])
        if message["structured"]
        else None,
        # vLLM's notes in a structured request's settings belong to that request only.
        skip_clone=True,
    )


def _images_of(engine: AsyncLLM) -> Any:
    # Imported here, because only models with image support need it.
    from backend.engines.vllm.host_images import HostImages

    return HostImages(engine)


async def serve(connection: socket.socket) -> None:
    """Start vLLM as the first message asks, and process the others until the socket closes."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=_LONGEST_LINE)

    def send(message: Message) -> None:
        writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    first = json.loads(await reader.readline())
    engine = AsyncLLM.from_engine_args(_engine_args(first["settings"]))
    settings = first["settings"]
    host = Host(
        engine,
        send,
        model_directory=Path(settings["model"]),
        sees="limit_mm_per_prompt" in settings,
        ranks=settings["tensor_parallel_size"],
    )
    # Before anything is asked of vLLM, which may end while it loads the policies.
    watching = asyncio.ensure_future(host.watch())
    await host.prepare(first["policies"])
    send({"ready": True})
    while line := await reader.readline():
        host.handle(json.loads(line))
    watching.cancel()


def _engine_args(settings: Message) -> AsyncEngineArgs:
    executor = "InProcessExecutor" if settings["tensor_parallel_size"] == 1 else "RanksExecutor"
    return AsyncEngineArgs(
        **settings,
        trust_remote_code=False,
        generation_config="vllm",
        enable_lora=True,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
        worker_extension_cls=f"{_WORKER}.WorkerExtension",
        distributed_executor_backend=f"{_WORKER}.{executor}",
    )


def main() -> None:
    """Serve on the socket whose number is the only argument."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    die_with_parent()
    end_when_exhausted()
    connection = socket.socket(fileno=int(sys.argv[1]))
    try:
        asyncio.run(serve(connection))
    except BaseException:
        _log.exception("the vLLM host ends")
        sys.stderr.flush()
        raise
    finally:
        # vLLM's processes are in our group, like this one.
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
