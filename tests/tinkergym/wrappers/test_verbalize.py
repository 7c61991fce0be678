import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from tinkergym.errors import EpisodeProtocolError, InvalidEnvironmentError, InvalidRequestError
from tinkergym.testing.contract import EnvContract
from tinkergym.wrappers import Verbalize, Wording

GENERIC = [
    "FrozenLake-v1",
    "Taxi-v4",
    "CliffWalking-v1",
    "Blackjack-v1",
    "CartPole-v1",
    "MountainCarContinuous-v0",
]


class Mixed(gym.Env):
    """Spaces of every kind, one in the other, and rewards that tell which action arrived."""

    observation_space = spaces.Dict(
        at=spaces.Box(-1, 1, (2,), np.float64), seen=spaces.Tuple((spaces.MultiBinary(2), spaces.Discrete(9)))
    )
    action_space = spaces.Dict(go=spaces.MultiDiscrete([3, 3]), shout=spaces.Discrete(2))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {"mask": np.int8([1, 0])}

    def step(self, action):
        reward = np.float32(action["go"].sum() + 10 * action["shout"])
        return self.observe(), reward, bool(self.np_random.random() < 0.1), False, {"at": np.float64(0.5)}

    def observe(self):
        random = self.np_random
        return {
            "at": random.uniform(-1, 1, 2),
            "seen": (random.integers(0, 2, 2, dtype=np.int8), random.integers(9)),
        }


gym.register("verbalize/Mixed-v0", Mixed, disable_env_checker=True)


def equal(one, other):
    if isinstance(one, dict):
        return all(equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return all(map(equal, one, other))
    return np.array_equal(one, other)


class Watch(gym.Wrapper):
    """Keeps what the bare environment returned."""

    def reset(self, **kwargs):
        self.returned = [self.env.reset(**kwargs)]
        return self.returned[-1]

    def step(self, action):
        self.returned.append(self.env.step(action))
        return self.returned[-1]


@pytest.mark.parametrize("name", [*GENERIC, "verbalize/Mixed-v0"])
def test_plays_as_the_bare_environment_plays(name):
    """Also when every other action cannot be read: misses draw nothing from the environment's generator."""
    bare, watched = gym.make(name), Watch(gym.make(name))
    env = Verbalize(watched, decimals=9, on_illegal="retry:1")
    # Of an action that is not whole, the bare environment gets what its words say.
    bare.action_space.seed(5)
    for seed in range(5):
        expected, _ = bare.reset(seed=seed), env.reset(seed=seed)
        assert equal(watched.returned[0][0], expected[0])
        over = False
        for _ in range(60):
            words = env.wording.action_text(bare.action_space.sample())
            env.step("no such action")
            _, reward, terminated, truncated, info = env.step(words)
            expected = bare.step(env.wording.action(words))
            assert equal(watched.returned[-1][0], expected[0])
            assert (reward, terminated, truncated) == (float(expected[1]), *expected[2:4])
            assert info["metrics"] == {"illegal_moves": 0.0}
            over = terminated or truncated
            if over:
                break


def test_uses_plain_numbers_and_names_as_generic_words():
    env = Verbalize(gym.make("MountainCar-v0"), action_names=["left", "none", "right"], decimals=2)
    assert env.metadata["system_prompt"] == "Answer with one of: left, none, right."
    assert env.legal_actions() == ["left", "none", "right"]
    assert env.reset(seed=0)[0] == "-0.47 0.00"
    assert env.step(" LEFT\n")[1] == -1.0


def test_gives_info_as_json_without_numpy():
    env = Verbalize(Mixed())
    assert env.reset(seed=0)[1] == {"mask": [1, 0]}
    info = env.step('{"go": [1, 2], "shout": 1}')[4]
    assert info == {"at": 0.5, "metrics": {"illegal_moves": 0.0}}
    assert type(info["at"]) is float


def test_allows_free_counted_retries_of_which_the_last_loses():
    env = Verbalize(gym.make("CliffWalking-v1"), on_illegal="retry:2", lose_reward=-7)
    env.reset(seed=0)
    for _ in range(2):
        observation, *rest = env.step("jump")
        assert observation == "'jump' is not an action. Answer with one of: 0, 1, 2, 3."
        assert rest == [0.0, False, False, {"metrics": {"illegal_moves": 1.0}}]
    assert env.step("0")[0] == "24"
    assert [env.step("jump")[1:3] for _ in range(3)] == [(0.0, False), (0.0, False), (-7.0, True)]
    with pytest.raises(EpisodeProtocolError):
        env.step("0")
    env.reset()
    env.step("0")


def test_needs_no_retry_for_a_loss():
    env = Verbalize(gym.make("CliffWalking-v1"), on_illegal="lose")
    env.reset(seed=0)
    assert env.step("jump")[1:3] == (-1.0, True)


def test_draws_replacement_actions_from_the_seed():
    def returns(seed, actions):
        env = Verbalize(gym.make("FrozenLake-v1"), on_illegal="random")
        observation, _ = env.reset(seed=seed)
        seen = [observation]
        for action in actions:
            observation, _, terminated, _, info = env.step(action)
            seen.append((observation, info["metrics"]["illegal_moves"]))
            if terminated:
                break
        return seen

    runs = [returns(seed, ["?"] * 30) for seed in range(6)]
    assert runs == [returns(seed, ["?"] * 30) for seed in range(6)]
    assert len({str(run) for run in runs}) > 1
    assert {miss for run in runs for _, miss in run[1:]} == {1.0}


@pytest.mark.parametrize(
    ("field", "setting"),
    [
        ("on_illegal", {"on_illegal": "retry"}),
        ("on_illegal", {"on_illegal": "retry:-1"}),
        ("action_names", {"action_names": ["a", "b"]}),
        ("action_names", {"action_names": ["a", "A", "b", "c"]}),
        ("decimals", {"decimals": -1}),
        ("wording", {"wording": "nowhere:Words"}),
        ("wording", {"wording": "json:loads"}),
    ],
)
def test_rejects_wrong_setting_with_its_name(field, setting):
    with pytest.raises(InvalidRequestError) as caught:
        Verbalize(gym.make("FrozenLake-v1"), **setting)
    assert caught.value.field == field


def test_rejects_environment_that_shows_pictures():
    class Screen(gym.Env):
        observation_space = spaces.Box(0, 255, (84, 84, 3), np.uint8)
        action_space = spaces.Discrete(2)

    with pytest.raises(InvalidEnvironmentError) as caught:
        Verbalize(Screen())
    assert caught.value.field == "env"


class Compass(Wording):
    rules = "Find G."
    names = ("west", "south", "east", "north")

    def observation(self, observation, info):
        return f"field {observation}"


def test_names_own_wording_by_module_and_class():
    env = Verbalize(gym.make("FrozenLake-v1", is_slippery=False), wording=f"{__name__}:Compass")
    assert env.metadata["system_prompt"] == "Find G. Answer with one of: west, south, east, north."
    env.reset(seed=0)
    assert env.step("East")[0] == "field 1"


class TestVerbalizedCartPole(EnvContract):
    def make(self):
        return Verbalize(gym.make("CartPole-v1", disable_env_checker=True), action_names=["left", "right"])
