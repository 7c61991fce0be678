"""An agent with a calculator, on the openai client. Train it as it is:

tinkergym train-agent --tasks sums.jsonl --model nano-instruct --steps 20 -- python calculator.py

It prints its reward as its last line; nothing else in it knows that it is trained.
"""

import json
import os

import openai

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}

task = json.loads(os.environ["TINKERGYM_TASK"])
client = openai.OpenAI()
messages = [{"role": "user", "content": f"What is {task['a']} + {task['b']}?"}]
for _ in range(3):
    message = client.chat.completions.create(model="any", messages=messages, tools=[ADD]).choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        numbers = json.loads(call.function.arguments)
        result = (
            str(numbers.get("a", 0) + numbers.get("b", 0)) if call.function.name == "add" else "no such tool"
        )
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
print(float(str(task["a"] + task["b"]) in (message.content or "").split()))
