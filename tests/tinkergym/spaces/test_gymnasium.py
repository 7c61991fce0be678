"""The spaces in Gymnasium's own hands: its checker and its vectors of environments."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import (
    batch_differing_spaces,
    batch_space,
    concatenate,
    create_empty_array,
    iterate,
)

from tinkergym.spaces import Chat, Image, Text, space_from_json, space_to_json

SPACES = {
    "text": Text(40),
    "chat": Chat(4),
    "image": Image(3, 4),
    "dict": spaces.Dict(text=Text(40), chat=Chat(), image=Image(2, 2), move=spaces.Discrete(3)),
    "tuple": spaces.Tuple([Text(40), spaces.Tuple([Chat(), Image(2, 2)]), spaces.MultiBinary(2)]),
}
by_name = pytest.mark.parametrize("name", SPACES)


class Mirror(gym.Env):
    """Shows random values of a space and what was done, in that space too."""

    def __init__(self, name, render_mode=None):
        self.render_mode = render_mode
        # By way of JSON: what comes out of a document must serve as well as the original.
        self.observation_space, self.action_space = (
            space_from_json(space_to_json(SPACES[name])) for _ in range(2)
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample(), {}

    def step(self, action):
        assert action in self.action_space, action
        return action, 0.0, False, False, {}


gym.register("spaces-tests/Mirror-v0", entry_point=Mirror, max_episode_steps=9)


@by_name
def test_passes_gymnasiums_checker(name):
    env = gym.make("spaces-tests/Mirror-v0", name=name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
        # With the passive checker around it, as everybody else gets it.
        env.reset(seed=1)
        env.step(env.action_space.sample())


def played(vector, single):
    """Play a vector of two for a few steps and check that each observation is what that environment got."""
    observations, _ = vector.reset(seed=[5, 6])
    for number, observation in enumerate(iterate(vector.observation_space, observations)):
        alone, _ = single.reset(seed=5 + number)
        assert data_equivalence(observation, alone, exact=True)
    vector.action_space.seed(7)
    for _ in range(3):
        actions = vector.action_space.sample()
        observations, _, terminated, truncated, _ = vector.step(actions)
        assert observations in vector.observation_space
        assert not terminated.any()
        assert not truncated.any()
        pairs = zip(
            iterate(vector.observation_space, observations),
            iterate(vector.action_space, actions),
            strict=True,
        )
        for observation, action in pairs:
            assert data_equivalence(observation, action, exact=True)


@by_name
def test_carries_every_space_in_sync_vectors(name):
    vector = SyncVectorEnv([lambda: Mirror(name)] * 2)
    played(vector, Mirror(name))
    vector.close()


@pytest.mark.parametrize("name", ["chat", "dict", "tuple"])
def test_carries_every_space_in_async_vectors_without_shared_memory(name):
    vector = AsyncVectorEnv([lambda: Mirror(name)] * 2, shared_memory=False)
    try:
        played(vector, Mirror(name))
    finally:
        vector.close()


@pytest.mark.parametrize("name", ["text", "chat", "dict", "tuple"])
def test_rejects_shared_memory_wherever_text_is_with_what_to_do(name):
    with pytest.raises(TypeError, match="shared_memory=False"):
        AsyncVectorEnv([lambda: Mirror(name)])


def test_allows_only_images_in_shared_memory():
    vector = AsyncVectorEnv([lambda: Mirror("image")] * 2)
    try:
        played(vector, Mirror("image"))
    finally:
        vector.close()


@by_name
def test_makes_empty_batches_in_form_of_full_ones(name):
    space = space_from_json(space_to_json(SPACES[name]))
    empty = create_empty_array(space, n=2)
    assert empty in batch_space(space, n=2)
    values = [space.sample(), space.sample()]
    batch = concatenate(space, values, empty)
    assert batch in batch_space(space, n=2)


def test_contains_empty_batches_of_bounded_spaces():
    assert create_empty_array(Text(9, min_length=4), n=2) in batch_space(Text(9, min_length=4), n=2)
    chat = Chat(9, min_messages=2, roles=["tool"])
    empty = create_empty_array(chat, n=2)
    assert empty in batch_space(chat, n=2)
    assert empty[0] is not empty[1]


def test_stacks_spaces_that_differ_in_their_bounds():
    assert batch_differing_spaces([Text(3), Text(5)]) == spaces.Tuple([Text(3), Text(5)])
    assert batch_differing_spaces([Chat(3), Chat(5)]) == spaces.Tuple([Chat(3), Chat(5)])
    images = batch_differing_spaces([Image(2, 3), Image(2, 3)])
    assert images.shape == (2, 2, 3, 3)
    assert is_space_dtype_shape_equiv(Chat(3), Chat(5))
    assert not is_space_dtype_shape_equiv(Chat(), Text())


def test_vectorizes_environments_whose_chats_differ_in_bounds():
    class Talk(Mirror):
        def __init__(self, most):
            self.observation_space, self.action_space = Chat(most), Chat()
            self.render_mode = None

    vector = SyncVectorEnv([lambda: Talk(2), lambda: Talk(9)], observation_mode="different")
    observations, _ = vector.reset(seed=0)
    assert [np.shape(observations)[0], observations in vector.observation_space] == [2, True]
