"""An environment whose error names a folder of this machine.

Apart from its tests: a process of its own imports this module, and theirs loads torch.
"""

from pathlib import Path

import gymnasium as gym


class Broken(gym.Env):
    """Cannot be reset."""

    observation_space = action_space = gym.spaces.Text(10)

    def reset(self, *, seed=None, options=None):
        raise OSError(f"{Path(__file__).parent}/words.txt is gone")


def make_broken(_):
    return Broken()
