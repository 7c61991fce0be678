"""An environment for the counterpart of verifiers: count to three, with trouble on request."""

import os

from verifiers.environment import MultiTurnEnv, Rubric
from verifiers.types import Record


class Count(MultiTurnEnv):
    """Say 1, 2 and 3."""

    def __init__(self, *, tools=False, rewrites=False, groups=False, held_out=True, max_turns=-1):
        rows = [
            {"prompt": [{"role": "user", "content": f"count from {start}"}], "start": start}
            for start in (1, 4)
        ]
        super().__init__(
            rows,
            rows[1:] if held_out else None,
            Rubric(self.score, has_group_rewards=groups),
            system_prompt="Count.",
            max_turns=max_turns,
        )
        self.rewrites = rewrites
        if tools:
            self.tool_defs = [Record(name="add", description="Adds.", parameters={"type": "object"})]

    def env_response(self, messages, state):
        """Ask for the next number, twice."""
        last = messages[-1]
        if "break" in last["content"]:
            raise ValueError("broken on purpose")
        if "die" in last["content"]:
            os._exit(3)
        print("what an environment prints is no answer")
        if self.rewrites:
            messages[0]["content"] += " (again)"
        if last.get("tool_calls"):
            call = last["tool_calls"][0]
            return [{"role": "tool", "tool_call_id": call.id, "content": f"{call.name} {call.arguments}"}]
        if state["turns"] == 3:
            state["final_env_response"] = True
        return [
            {"role": "user", "content": [{"type": "text", "text": "next" if state["turns"] < 3 else "done"}]}
        ]

    def score(self, state):
        """Pay for each right number."""
        said = [m["content"] for m in state["completion"] if m["role"] == "assistant"]
        right = [str(state["start"] + i) for i in range(3)]
        paid = sum(a == b for a, b in zip(said, right, strict=False))
        odd = 10**400 if "huge metric" in said else "words"
        return float("nan") if "nan" in said else 10**400 if "huge" in said else paid, {
            "right": paid,
            "odd": odd,
        }


def load_environment(**arguments):
    """Make it."""
    return Count(**arguments)
