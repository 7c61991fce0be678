"""An environment that walks on while the policy says yes, and plans to play it."""

import tinkergym as tg
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.rollout.play_list import play
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.testing import ScriptedSampler, byte_bundle

RENDERER = Renderer.from_bundle(byte_bundle())


YES = ScriptedSampler(RENDERER, lambda prompt: "yes")


class Walk(tg.TextEnv):
    """As many turns as the seed says; the reward is the answer's length."""

    def start(self, options):
        self.left = int(self.np_random.integers(1, 6))
        return f"{self.left} left, {options.get('task_index')}"

    def reply(self, action):
        self.left -= 1
        return f"{self.left} left, {int(self.np_random.integers(100))}", float(len(action)), self.left == 0


def plans(count, environment="walk", *, limits=None, **settings):
    return [
        EpisodePlan(
            episode_id=f"e{i}",
            seed=i,
            policy="p",
            environment=EnvironmentRef(id=environment),
            decoding=Decoding(max_turn_tokens=8, seed=1000 * i),
            limits=limits or Limits(),
            **settings,
        )
        for i in range(count)
    ]


def played(requests, make_env=lambda reference: Walk(), sampler=YES, **settings):
    results = play(requests, sampler=sampler, renderer=RENDERER, make_env=make_env, **settings)
    return {result.episode_id: result.trajectory for result in results}
