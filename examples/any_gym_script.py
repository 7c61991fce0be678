"""A script's own environment and its own loop, trained remotely. Needs a running service: `tinkergym serve`.

The class is plain Gymnasium and never leaves this process; the service sees text, tokens and rewards. The
three lines that differ from a script without training are marked.
"""

import gymnasium as gym

import tinkergym as tg


class HigherOrLower(gym.Env):
    """Guess a number between 1 and 9 in three tries."""

    observation_space = gym.spaces.Discrete(3)
    action_space = gym.spaces.Text(8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(1, 10))
        self.tries = 0
        return 0, {}

    def step(self, action):
        self.tries += 1
        guess = int(action) if action.strip() in {*"123456789"} else None
        if guess == self.number:
            return 0, 1.0, True, False, {}
        reward = -0.2 if guess is None else 0.0
        return (1 if guess is None or self.number > guess else 2), reward, self.tries == 3, False, {}


def describe(observation: int) -> str:
    return ["Guess a number from 1 to 9.", "Higher.", "Lower."][observation]


env = tg.wrappers.TrainRemotely(  # 1: wrapped
    HigherOrLower(),
    model="nano",
    algorithm=tg.GRPO(group_size=4, groups_per_step=4, learning_rate=2e-3),
    sampling=tg.Sampling(max_turn_tokens=8),
    steps=10,
)
returns = []
while env.training:
    observation, info = env.reset()
    over, total = False, 0.0
    while not over:
        action = env.policy.act(describe(observation))  # 2: the policy answers
        observation, reward, terminated, truncated, info = env.step(action)
        total += reward
        over = terminated or truncated
    returns.append(total)
    if len(returns) % 16 == 0:
        print(f"episode {len(returns)}: mean return of the last 16 {sum(returns[-16:]) / 16:+.3f}")
env.close()  # 3: waits for the last training step

print(f"trained; continue with tinkergym.Client().job({env.job.id!r}).policy()")
