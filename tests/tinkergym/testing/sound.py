"""An environment that keeps every promise."""

import tinkergym as tg


class Sound(tg.TextEnv):
    """Name the number shown, three times."""

    def start(self, options):
        self.left = 3
        return self.shown()

    def shown(self):
        self.number = int(self.np_random.integers(10))
        return f"say {self.number}"

    def reply(self, action):
        self.left -= 1
        right = action == str(self.number)
        return self.shown(), float(right), self.left == 0, {"metrics": {"right": float(right)}}

    def legal_actions(self):
        return [str(i) for i in range(10)]

    def gold_action(self):
        return str(self.number)
