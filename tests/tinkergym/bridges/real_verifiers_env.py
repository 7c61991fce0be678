"""Environments written with the real verifiers, as people publish them; needs verifiers to be imported."""

import verifiers as vf
from datasets import Dataset


class Count(vf.MultiTurnEnv):
    """Say 1, 2 and 3."""

    async def env_response(self, messages, state, **kwargs):
        """Ask for the next number, twice."""
        said = messages[-1].content
        if "break" in said:
            raise vf.Error("broken on purpose")
        if len(state["trajectory"]) == 3:
            state["final_env_response"] = [{"role": "user", "content": "done"}]
            return state["final_env_response"]
        return [{"role": "user", "content": "next"}]


def paid(completion, answer, **kwargs):
    """Pay for each right number."""
    said = [message.content for message in completion if message.role == "assistant"]
    return float(sum(a == b for a, b in zip(said, answer.split(), strict=False)))


async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a + b


def load_environment(kind="count", max_turns=-1):
    """Make one of them."""
    rows = [
        {"question": f"count from {start}", "answer": " ".join(str(start + i) for i in range(3))}
        for start in (1, 4)
    ]
    if kind == "tool":
        rubric = vf.Rubric(funcs=[lambda completion, **kwargs: float("5" in str(completion[-1].content))])
        return vf.ToolEnv(dataset=Dataset.from_list(rows), tools=[add], rubric=rubric, system_prompt="Add.")
    return Count(
        dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[1:]),
        rubric=vf.Rubric(funcs=[paid]),
        system_prompt="Count.",
        max_turns=max_turns,
    )
