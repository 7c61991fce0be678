"""An environment in the cookbook's rollout."""

from pathlib import Path

import backend
import tinkergym as tg

NANO = str(Path(backend.__file__).parent / "models" / "nano")


class Count(tg.TextEnv):
    """Answer with the number shown, three times."""

    system_prompt = "Repeat the number."

    def start(self, options):
        self.left, self.closed = 3, False
        return self.shown()

    def shown(self):
        self.number = int(self.np_random.integers(100))
        return f"say {self.number}"

    def reply(self, action):
        if action == "fail":
            raise RuntimeError("broken on purpose")
        if action == "nan":
            return "", float("nan"), True, {}
        self.left -= 1
        right = float(action == str(self.number))
        return self.shown(), right, self.left == 0, {"metrics": {"right": right}}
