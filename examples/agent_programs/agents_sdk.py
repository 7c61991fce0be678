"""The calculator again, on openai-agents, which calls the Responses API. Train it as `calculator.py`."""

import json
import os

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.exceptions import AgentsException

set_tracing_disabled(True)
task = json.loads(os.environ["TINKERGYM_TASK"])


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


agent = Agent(name="calculator", model="any", tools=[add])
try:
    answer = str(Runner.run_sync(agent, f"What is {task['a']} + {task['b']}?", max_turns=3).final_output)
except AgentsException as error:
    answer = f"it went on for too long: {error}"
print(float(str(task["a"] + task["b"]) in answer.split()))
