"""RecordedSession: one run of an agent program, as an episode whose turns are the program's own calls.

The player drives it as it drives an agent loop, but makes a single call of the environment: the program. The
program calls back over HTTP; each call becomes a sampling request of its role's seat, with the ids and
logprobs of the engine. So leases, retries, time limits, groups and submission are those of any episode.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinkergym.agent.agent_loop import AgentState
from tinkergym.agent.environment_values import valid_reward
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.sampler import Sampler
from tinkergym.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    ServiceUnavailableError,
    TinkerGymError,
    from_wire,
)
from tinkergym.images.stored_images import image_file
from tinkergym.openai_api.chat_messages import ReadImage, conversation
from tinkergym.openai_api.chat_request import ChatRequest
from tinkergym.recording.agent_program import ProgramSession
from tinkergym.recording.program_call import Call, Delivery
from tinkergym.recording.role_calls import RoleCalls
from tinkergym.schema.sampling import Completion, SampleFailure
from tinkergym.trajectory.trajectory import StopReason, Trajectory
from tinkergym.user_code.quoting import quoted


class RecordedSession:
    """One run of an agent program. Thread-safe.

    The player uses `state`, `play`, `finish`, `fail` and `trajectories`; the server uses `ask`.
    """

    def __init__(
        self,
        plan: EpisodePlan,
        renderer: Callable[[str], Renderer],
        sampler: Sampler,
        *,
        base_url: str,
        strict: bool = False,
        clock: Callable[[], float] = time.monotonic,
        on_end: Callable[[RecordedSession], None] = lambda _: None,
    ) -> None:
        """Open the session.

        Args:
            plan: Of the episode; its seats are the roles.
            renderer: Returns the renderer of a seat's model.
            sampler: Samples tokens.
            base_url: Where the recording server listens.
            strict: Whether calls that cannot be trained on are refused.
            clock: Seconds, monotonic.
            on_end: Called when the session ends, and its key with it.
        """
        self._plan, self._sampler, self._strict = plan, sampler, strict
        self._clock, self._begun_at, self._on_end = clock, clock(), on_end
        self.key = secrets.token_urlsafe(24)
        """Authorizes calls of this session alone."""
        self.name = secrets.token_hex(6)
        self._base_url = base_url
        in_training = any(seat.trained for seat in plan.seats)
        self._roles = {
            seat.agent: RoleCalls(seat, renderer(seat.model), in_training=in_training) for seat in plan.seats
        }
        # Guards everything below, and the roles.
        self._lock = threading.Lock()
        self._calls: list[Call] = []
        self._answering = 0
        """How many of them are not over."""
        self._moves = 0
        self._rewards: dict[str, float] = {}
        self._posted: list[object] = []
        """The reward, once it is posted."""
        self._rewarded = threading.Event()
        self._stop_reason: StopReason | None = None
        self._error = ""

    # --- for the player ---

    @property
    def state(self) -> AgentState:
        """What it waits for: the program, or nothing any more."""
        return AgentState.INTERACTING if self._stop_reason is None else AgentState.TERMINATED

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it ended; None while it runs."""
        return self._stop_reason

    @property
    def may_call(self) -> bool:
        """Whether the program waits for no answer, so that it is likely to call."""
        return not self._answering

    def play(self, program: Any) -> Any:
        """Run the program and return its reward; called where environments run."""
        plan = self._plan
        session = ProgramSession(
            key=self.key,
            urls={role: f"{self._base_url}/{self.name}/{role}/v1" for role in self._roles},
            seed=plan.seed,
            name=self.name,
            is_evaluation=not any(seat.trained for seat in plan.seats),
            reward_url=f"{self._base_url}/{self.name}/reward",
            timeout_seconds=plan.limits.episode_timeout_seconds,
            posted_reward=self._await_reward,
            has_posted=lambda: bool(self._posted),
        )
        return program.play(session, plan.task_index)

    def finish(self, reward: object) -> None:
        """End the session with what the program returned, unless it has posted its reward."""
        with self._lock:
            if self._stop_reason is not None:
                return
            reward = self._posted[-1] if self._posted else reward
            for call in self._calls:
                if not call.is_over:
                    self._roles[call.role].unfinished += len(call.requests)
                call.leave_out_unread()
            for role in self._roles.values():
                role.forest.choose()
            # In the same breath: a call that begins or is answered after this is not part of the record.
            self._stop_reason, self._error = self._outcome(reward)
        self._release()

    def fail(self, stop_reason: StopReason, error: str = "") -> None:
        """End the session for an external reason. A second end is ignored."""
        with self._lock:
            if self._stop_reason is not None:
                return
            self._stop_reason, self._error = stop_reason, error
        self._release()

    def trajectories(self) -> list[Trajectory]:
        """Return the record of each role of an ended session."""
        with self._lock:
            assert self._stop_reason is not None, "the session has ended"
            return [
                role.trajectory(self._stop_reason, self._error, self._rewards.get(name, 0.0))
                for name, role in self._roles.items()
            ]

    # --- for the server ---

    def ask(
        self,
        role: str,
        wanted: ChatRequest,
        *,
        body: bytes = b"",
        retry: int = 0,
        read_image: ReadImage = image_file,
    ) -> Call:
        """Begin to answer a call, which can be waited for. It is recorded once, however many wait.

        Args:
            role: The seat.
            wanted: The call.
            body: Identifies the call among repeats.
            retry: How often its client has sent it before. If it was answered, the stored answer is returned.
            read_image: Checks images of the call.

        Raises:
            NotFoundError: The job has no such role.
            ConflictError: The session has ended, or is at a limit.
            InvalidRequestError: The call cannot be answered.
        """
        own = self._role(role)
        # Without the lock: images may wait for those of others, and answers that arrive must not.
        messages = conversation(wanted.messages, read_image)
        with self._lock:
            if self._stop_reason is not None:
                raise ended()
            known = self._repeated(role, body, retry)
            call = own.begin(wanted, messages, body, strict=self._strict) if known is None else known
            if known is None:
                self._calls.append(call)
                self._answering += 1
        if known is None:
            try:
                # Without the lock, which `_take` needs: the sampler may answer in this thread.
                self._sampler.submit(call.requests, Delivery(call, self._take))
            except TinkerGymError as error:  # It was closed. A repeat must not wait for it.
                with self._lock:
                    self._roles[role].give_back(call)
                    call.failure = error
                    self._end(call)
        return call

    def post_reward(self, reward: object) -> None:
        """Take the reward that the program posts; the last one counts.

        Raises:
            InvalidRequestError: It is not valid.
        """
        named = self._by_role(reward)
        try:
            self._valid({role: 0.0 if value is None else value for role, value in named.items()})
        except ValueError as error:
            raise InvalidRequestError(f"got {error}", field="reward") from None
        with self._lock:
            if self._stop_reason is not None:
                raise ended()
            self._posted.append(reward)
        self._rewarded.set()

    def context_length(self, role: str) -> int:
        """Return the most tokens of a role's prompt and completion together.

        Raises:
            NotFoundError: The job has no such role.
        """
        return self._role(role).renderer.context_length

    # --- inside ---

    def _release(self) -> None:
        """End what waits for the session, which has ended."""
        with self._lock:
            for call in self._calls:
                if not call.is_over:
                    call.failure = ended()
                    self._end(call)
        self._rewarded.set()
        self._on_end(self)

    def _role(self, role: str) -> RoleCalls:
        own = self._roles.get(role)
        if own is None:
            roles = ", ".join(self._roles)
            raise NotFoundError(f"there is no role {role!r:.80}", hint=f"the roles are {roles}", field="role")
        return own

    def _await_reward(self, seconds: float) -> object:
        self._rewarded.wait(seconds)
        return self._posted[-1] if self._posted else None

    def _by_role(self, reward: object) -> Mapping[str, object]:
        return reward if isinstance(reward, Mapping) else dict.fromkeys(self._roles, reward)

    def _valid(self, named: Mapping[str, object]) -> dict[str, float]:
        """Return the reward of each role.

        Raises:
            ValueError: One is missing, unknown or not a number. The message follows "returned".
        """
        if unlike := sorted(named.keys() ^ self._roles.keys(), key=str):
            what = "no reward for" if unlike[0] in self._roles else "a reward for the unknown role"
            raise ValueError(f"{what} {quoted(unlike[0])}; the roles are {', '.join(self._roles)}")
        found = {}
        for role, value in named.items():
            try:
                found[role] = valid_reward(value)
            except ValueError as error:
                raise ValueError(f"the reward {error}") from None
        return found

    def _repeated(self, role: str, body: bytes, retry: int) -> Call | None:
        """Return the call that a client repeats: one whose answer it has not got, else the newest."""
        if not retry:
            return None  # Without a look at all calls, which may be thousands.
        same = [
            call
            for call in self._calls
            if (call.role, call.body) == (role, body) and call.retry < retry and call.failure is None
        ]
        if not same:
            return None
        found = next((call for call in same if not call.is_delivered), same[-1])
        found.retry = retry
        return found

    def _take(self, call: Call, found: Sequence[Completion | SampleFailure]) -> None:
        with self._lock:
            if call.is_over or self._stop_reason is not None:
                return  # The session has ended, or another choice has failed.
            for one in found:
                if isinstance(one, SampleFailure):
                    call.failure = from_wire(one.error.model_dump())
                elif not call.is_as_streamed(one):
                    call.failure = ServiceUnavailableError(
                        "the model's worker was restarted, and sampled other tokens than those sent",
                        hint="send the request again",
                    )
                else:
                    call.found[one.request_id] = one
            if call.failure is None:
                if len(call.found) < len(call.requests):
                    return
                self._record(call)
            else:
                self._roles[call.role].give_back(call)
            self._end(call)

    def _end(self, call: Call) -> None:
        self._answering -= 1
        call.end()

    def _record(self, call: Call) -> None:
        try:
            seconds = max(0.0, self._clock() - self._begun_at)
            self._roles[call.role].take(call, move=self._moves + 1, seconds=seconds)
        except Exception as error:  # The program waits for an answer, whatever went wrong.
            call.failure = TinkerGymError(f"the answer cannot be recorded: {type(error).__name__}: {error}")
        else:
            self._moves += len(call.requests)

    def _outcome(self, reward: object) -> tuple[StopReason, str]:
        """Take the rewards; return why the episode ended, and what is wrong with it."""
        named = self._by_role(reward)
        if None in named.values():
            return StopReason.ABANDONED, "the program returned None, so its episode is dropped"
        try:
            self._rewards = self._valid(named)
        except ValueError as error:
            return StopReason.INVALID_REWARD, f"the program returned {error}"
        if not self._calls:
            return StopReason.ENVIRONMENT_ERROR, "the program ended without a call to its session's URL"
        reasons = sum((role.reasons() for role in self._roles.values()), Counter[str]())
        if reasons and all(one.untrained for role in self._roles.values() for one in role.forest.answers):
            why = ", ".join(f"{name} ({number})" for name, number in reasons.most_common())
            return StopReason.ENVIRONMENT_ERROR, f"none of the program's calls can be trained on: {why}"
        return StopReason.TERMINATED, ""


def ended() -> ConflictError:
    """Return the error for calls of a session that has ended."""
    return ConflictError(
        "the session has ended, and its key with it", hint="begin another", code="session_ended"
    )
