import math

from tinkergym.agent.renderer import Renderer
from tinkergym.messages import user
from tinkergym.schema.sampling import SampleRequest
from tinkergym.testing import RandomTokenSampler, ScriptedSampler, byte_bundle

RENDERER = Renderer.from_bundle(byte_bundle())


def request(text="2+2?", seed=0, max_tokens=20, name="r"):
    return SampleRequest(
        request_id=name,
        policy="p",
        policy_version=3,
        prompt_ids=RENDERER.start([user(text)]),
        max_tokens=max_tokens,
        seed=seed,
        stop_ids=RENDERER.stop_ids,
    )


def answers(sampler, *requests):
    delivered = []
    sampler.submit(requests, delivered.extend)
    sampler.close()
    return delivered


def test_answers_by_script_what_the_prompt_asks():
    sampler = ScriptedSampler(RENDERER, lambda prompt: "4" if "2+2" in prompt else "?")
    first, second = answers(sampler, request(), request("3+3?", name="s"))
    assert [RENDERER.decode_answer(a.token_ids) for a in (first, second)] == ["4", "?"]
    assert (first.request_id, first.finish_reason, first.policy_version) == ("r", "stop", 3)


def test_cuts_scripted_answer_at_the_limit():
    (cut,) = answers(ScriptedSampler(RENDERER, lambda prompt: "a long answer"), request(max_tokens=6))
    assert (RENDERER.decode_answer(cut.token_ids), cut.finish_reason) == ("a long", "length")


def test_derives_random_tokens_from_the_seed_alone():
    sampler = RandomTokenSampler(RENDERER.vocab_size)
    alone = [answers(sampler, request(seed=seed))[0].token_ids for seed in range(20)]
    together = [a.token_ids for a in answers(sampler, *(request("other", seed=seed) for seed in range(20)))]
    assert alone == together
    assert len({tuple(ids) for ids in alone}) == 20


def test_ends_random_answers_with_the_first_stop_token():
    sampler = RandomTokenSampler(RENDERER.vocab_size)
    for answer in answers(sampler, *(request(seed=seed, max_tokens=400) for seed in range(30))):
        stops = [token in RENDERER.stop_ids for token in answer.token_ids]
        assert not any(stops[:-1])
        assert answer.finish_reason == ("stop" if stops[-1] else "length")
        assert set(answer.sampling_logprobs) == {-math.log(RENDERER.vocab_size)}
