"""One episode being played: how its loop takes what its environment returns, and what a hanging one reports.

Each call has `limits.step_timeout_seconds`. The player looks a few times per second, ends the episode of an
overdue call as `environment_timeout`, and gives the environment to `HostPool.discard`, which abandons its
thread or kills its process. The next episode gets a new environment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tinkergym.agent.agent_loop import AgentLoop, AgentState
from tinkergym.agent.coordinator import Coordinator, Position
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.sampler import Sampler
from tinkergym.errors import TinkerGymError
from tinkergym.rollout.environment_host import AnyEnv, Host
from tinkergym.rollout.game_table import PLAYERS, TOOLS
from tinkergym.rollout.host_pool import HostPool
from tinkergym.schema.sampling import SampleRequest
from tinkergym.trajectory.trajectory import StopReason, Trajectory
from tinkergym.user_code.quoting import quoted, type_in_words

AnyRenderer = Renderer | Callable[[str], Renderer]


class Recording(Protocol):
    """An episode that a program plays by itself, with one call of the environment."""

    @property
    def state(self) -> AgentState:
        """What it waits for."""
        ...

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it ended; None while it runs."""
        ...

    def play(self, env: Any) -> Any:
        """Play with the environment; called where environments run."""
        ...

    def finish(self, value: Any) -> None:
        """End the episode with what `play` returned."""
        ...

    def fail(self, stop_reason: StopReason, error: str = "") -> None:
        """End the episode for an external reason. A second end is ignored."""
        ...

    def trajectories(self) -> list[Trajectory]:
        """Return the record of each seat."""
        ...


class Recorder(Protocol):
    """Records programs that play by themselves."""

    def open(self, plan: EpisodePlan, renderer: Callable[[str], Renderer], sampler: Sampler) -> Recording:
        """Begin an episode."""
        ...

    def close(self) -> None:
        """Release what it holds; no episode is running."""
        ...


@dataclass(slots=True, eq=False)
class PlayedEpisode:
    """An episode being played: it waits for a completion, or for the one call that its environment runs.

    All times are on the player's clock.
    """

    plan: EpisodePlan
    loop: AgentLoop | Coordinator | Recording
    renderer: AnyRenderer
    hosts: HostPool
    host: Host
    ends_at: float
    call: str = ""
    """The environment's running call: `make`, `reset`, `step` or `play`; empty if there is none."""
    call_id: int = 0
    call_ends_at: float = 0.0
    request_id: str = ""
    """Id of the last sampling request."""

    def limit_seconds(self, call: str) -> float:
        """Return how long a call may take."""
        limits = self.plan.limits
        return limits.episode_timeout_seconds if call == "play" else limits.step_timeout_seconds

    def first_call(self) -> tuple[str, Callable[[AnyEnv], Any]]:
        """Return the name and the function of the call that begins it."""
        plan = self.plan
        if not isinstance(self.loop, AgentLoop | Coordinator):
            return "play", self.loop.play
        options: dict[str, Any] = {} if plan.task_index is None else {"task_index": plan.task_index}
        if plan.table:
            options[PLAYERS] = dict(plan.table)
        tools = {seat.agent: seat.tools for seat in plan.seats if seat.tools is not None}
        if tools:
            options[TOOLS] = tools
        arguments: dict[str, Any] = {"seed": plan.seed, **({"options": options} if options else {})}
        return "reset", lambda env: env.reset(**arguments)

    def taken(self, call: str, value: Any) -> SampleRequest | None:
        """Pass the return value of `reset` or `step` to the loop; return its request, or None at the end."""
        loop, length = self.loop, 2 if call == "reset" else 5
        assert isinstance(loop, AgentLoop | Coordinator), "a program has no reset and no step"
        if isinstance(loop, Coordinator):
            if not isinstance(value, Position):
                text = "an episode with several seats needs a PettingZoo game"
                loop.fail(StopReason.ENVIRONMENT_ERROR, text)
                return None
            value = (value,)
        elif not isinstance(value, tuple) or len(value) != length:
            what = f"a tuple of {len(value)}" if isinstance(value, tuple) else type_in_words(value)
            shown = "" if value is None else f": {quoted(value)}"
            text = f"{call} must return a tuple of {length}, but it returned {what}{shown}"
            loop.fail(StopReason.ENVIRONMENT_ERROR, text)
            return None
        try:
            if call == "reset":
                return loop.begin(*value, environment_prompt=self.host.system_prompt)
            return loop.stepped(*value)
        except TinkerGymError as error:
            # The chat template refuses the messages, so no request can be made.
            loop.fail(StopReason.SAMPLING_FAILED, f"{type(error).__name__}: {error}")
            return None

    def trajectories(self) -> list[Trajectory]:
        """Return the record of each seat."""
        return [self.loop.trajectory()] if isinstance(self.loop, AgentLoop) else self.loop.trajectories()


def overdue_text(host: Host, call: str, limit_seconds: float) -> str:
    """Say which call did not return, with the stack of where it hangs if the host knows it."""
    where = host.where().rstrip()
    text = f"{call} did not return within {limit_seconds} s"
    return f"{text}\nit is here:\n{where}" if where else text


def late_text(call: str, seconds: float, limit_seconds: float) -> str:
    """Say which call returned too late, from a host that cannot interrupt a call."""
    return f"{call} returned after {seconds:.3g} s, not within {limit_seconds:g} s"
