"""Two roles of one agent program, each with an adapter of its own: one adds, the other checks.

The program is ordinary code that calls the OpenAI API; only its URL and key come from the session.
"""

import httpx

import tinkergym as tg
from tinkergym.recording.agent_program import ProgramSession

TASKS = [{"a": a, "b": b} for a in range(1, 10) for b in range(1, 10)]
HTTP = httpx.Client(timeout=60.0, trust_env=False)


def ask(url: str, key: str, text: str) -> str:
    """Call a model behind an OpenAI-style URL, as any program does."""
    body = {"model": "any", "messages": [{"role": "user", "content": text}], "max_tokens": 8}
    reply = HTTP.post(f"{url}/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"})
    reply.raise_for_status()
    return str(reply.json()["choices"][0]["message"]["content"] or "")


def play(session: ProgramSession) -> dict[str, float]:
    a, b = session.task["a"], session.task["b"]
    answer = ask(session.url("solver"), session.key, f"What is {a} + {b}?")
    verdict = ask(session.url("critic"), session.key, f"Is {a} + {b} = {answer}? Answer yes or no.")
    is_right = str(a + b) in answer.split()
    is_approved = "yes" in verdict.lower()
    return {"solver": float(is_right), "critic": float(is_right == is_approved)}


def main(steps: int = 10) -> None:
    with tg.Client() as client:
        job = client.train_agent(
            play,
            {"train": TASKS[::2], "test": TASKS[1::2]},
            model="nano-instruct",
            roles={"solver": tg.Train(), "critic": tg.Train()},
            steps=steps,
            algorithm=tg.GRPO(group_size=8, groups_per_step=4, learning_rate=3e-3),
            evaluate=tg.EvaluateEvery(steps, split="test", episodes=16),
        )
        print(f"{job.id} trains two adapters")
        job.wait()


if __name__ == "__main__":
    main()
