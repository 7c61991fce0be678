"""GRPO as your own loop, with the low-level API: sample, score, forward_backward, optim_step, publish."""

import random

import tinkergym as tg

ANIMALS = ["cat", "dog", "bird", "fish", "horse"]
STEPS, GROUPS, GROUP_SIZE = 20, 4, 8


def score(animal: str, answer: str) -> float:
    return float("blue" in answer and animal in answer)


def main(steps: int = STEPS) -> list[float]:
    draw = random.Random(0)
    rewards_by_step = []
    with tg.Client() as client, client.create_policy(model="nano-instruct") as policy:
        print(f"{policy.job_id} is trained by this script")
        for step in range(steps):
            policy.publish()
            sequences, rewards = [], []
            animals = [draw.choice(ANIMALS) for _ in range(GROUPS)]
            prompts = [policy.prompt_ids(f"Write a sentence about a {animal}.") for animal in animals]
            count = GROUPS * GROUP_SIZE
            seeds = range(step * count, (step + 1) * count)
            groups = policy.sample_many(prompts, n=GROUP_SIZE, max_tokens=32, seeds=seeds)
            for animal, prompt, completions in zip(animals, prompts, groups, strict=True):
                returns = [score(animal, policy.text(completion)) for completion in completions]
                baseline = sum(returns) / len(returns)
                rewards += returns
                for completion, reward in zip(completions, returns, strict=True):
                    sequences.append(
                        {
                            "token_ids": prompt + completion.token_ids,
                            "loss_mask": [False] * len(prompt) + [True] * len(completion.token_ids),
                            "sampling_logprobs": [None] * len(prompt) + completion.sampling_logprobs,
                            "advantage": reward - baseline,
                        }
                    )
            policy.forward_backward(sequences, "ppo")
            policy.optim_step(3e-3)
            rewards_by_step.append(sum(rewards) / len(rewards))
            print(f"step {step + 1}: mean reward {rewards_by_step[-1]:.2f}")
        print("saved as", policy.save().result())
        policy.cancel()
    return rewards_by_step


if __name__ == "__main__":
    main()
