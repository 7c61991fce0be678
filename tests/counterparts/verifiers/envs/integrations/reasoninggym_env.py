"""A counterpart of verifiers' environment for reasoning-gym: sums, answered between tags."""

import random
import re

from verifiers.environment import MultiTurnEnv, Rubric


class ReasoningGymEnv(MultiTurnEnv):
    """Sums in words."""

    def __init__(self, gym, num_train_examples=100, num_eval_examples=20, system_prompt="Be right.", seed=0):
        rng = random.Random(seed)
        pairs = [
            (rng.randrange(10), rng.randrange(10)) for _ in range(num_train_examples + num_eval_examples)
        ]
        rows = [
            {
                "prompt": [
                    {
                        "role": "user",
                        "content": f"State the final answer to the following arithmetic problem: {a} + {b} =",
                    }
                ],
                "answer": str(a + b),
                "example_id": i,
            }
            for i, (a, b) in enumerate(pairs)
        ]
        super().__init__(
            rows[:num_train_examples],
            rows[num_train_examples:],
            Rubric(self.score),
            system_prompt=system_prompt,
        )

    def score(self, state):
        """Pay for the right answer between tags."""
        found = re.search(r"<answer>(.*?)</answer>", state["completion"][0]["content"], re.DOTALL)
        right = float(found is not None and found[1].strip() == state["answer"])
        return right, {"check_answer_reward_func": right, "format_reward_func": float(found is not None)}
