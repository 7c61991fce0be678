from tinkergym.agent.renderer import Renderer
from tinkergym.evaluation.matches import Match, Player, play_matches
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.testing.bundles import byte_bundle
from tinkergym.testing.samplers import ScriptedSampler

NIM = EnvironmentRef(id="games/Nim-v0")


class Recorded:
    """A policy that takes one, and keeps what it was asked."""

    version = None
    model = "scripted"
    limits = Limits()

    reasoning, tools = "keep", None

    def __init__(self, name, *, system_prompt=None, **decoding):
        self.name, self.system_prompt = name, system_prompt
        self.decoding = Decoding(**{"max_turn_tokens": 16, **decoding})
        self.renderer = Renderer.from_bundle(byte_bundle())
        self.requests = []

    def sampler(self):
        policy = self

        class Keeping(ScriptedSampler):
            def submit(self, requests, deliver):
                policy.requests += requests
                super().submit(requests, deliver)

        return Keeping(self.renderer, lambda _prompt: "1")


def played(*players, seeds=(0,)):
    agents = ("player_0", "player_1")
    seats = dict(zip(agents, players, strict=True))
    return play_matches([Match(seats=seats, seed=seed) for seed in seeds], NIM)


def test_samples_each_player_by_its_own_settings():
    one = Recorded("one", top_p=0.5, top_k=7, max_turn_tokens=3)
    other = Recorded("other", system_prompt="Play.")
    played(
        Player(name="one", plays=one, temperature=0.0),
        Player(name="other", plays=other, temperature=0.25),
    )
    settings = [
        {(asked.temperature, asked.top_p, asked.top_k, asked.max_tokens) for asked in policy.requests}
        for policy in (one, other)
    ]
    assert settings == [{(0.0, 0.5, 7, 3)}, {(0.25, 1.0, 0, 16)}]
    prompts = [one.renderer.decode(policy.requests[0].prompt_ids) for policy in (one, other)]
    assert ["Play." in prompt for prompt in prompts] == [False, True]


def test_samples_every_game_and_seat_by_its_own_seed():
    one, other = Recorded("one"), Recorded("other")
    seats = [Player(name=policy.name, plays=policy) for policy in (one, other)]
    played(*seats, seeds=(0, 1, 2))
    firsts = {
        policy.name: {asked.session_id: asked.seed for asked in policy.requests[::-1]}
        for policy in (one, other)
    }
    seeds = [seed for some in firsts.values() for seed in some.values()]
    assert len(seeds) == len(set(seeds)) == 6
    again = Recorded("one"), Recorded("other")
    played(*(Player(name=policy.name, plays=policy) for policy in again), seeds=(2, 1, 0))
    assert sorted(asked.seed for asked in again[0].requests) == sorted(asked.seed for asked in one.requests)
