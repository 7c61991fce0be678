import asyncio
import pickle

import pytest

import tinkergym as tg
from tests.tinkergym.bridges.cookbook import NANO, Count


@pytest.fixture
def rollout():
    """Play a group with answers that are a function of the prompt's text; return group and prompts."""
    from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
    from tinker_cookbook.rl.rollouts import do_group_rollout
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    from tinkergym.bridges.tinker_cookbook import GymDatasetBuilder

    tg.register("tests/Count-v0", Count)
    tokenizer = get_tokenizer(NANO)

    class Scripted(TokenCompleter):
        def __init__(self, answer):
            self.answer, self.prompts, self.sampled = answer, [], []

        async def __call__(self, model_input, stop):
            assert stop == [tokenizer.eos_token_id]
            ids = model_input.to_ints()
            answer = tokenizer.encode(self.answer(tokenizer.decode(ids)), add_special_tokens=False) + stop
            self.prompts.append(ids)
            self.sampled.append(answer)
            return TokensWithLogprobs(tokens=answer, maybe_logprobs=[-0.5] * len(answer), stop_reason="stop")

    def play(answer, **settings):
        builder = GymDatasetBuilder(
            env_id="tests/Count-v0", model_name=NANO, batches=3, batch_size=2, **settings
        )
        dataset, _ = asyncio.run(builder())
        group = pickle.loads(pickle.dumps(dataset.get_batch(1)[0]))
        policy = Scripted(answer)
        return asyncio.run(do_group_rollout(group, policy)), policy, dataset

    return play
