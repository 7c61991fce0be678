import pytest

from tests.tinkergym.openai_api.test_chat_stream import completion, part
from tinkergym.agent.renderer import Renderer
from tinkergym.openai_api.text_answer import TextChoices
from tinkergym.openai_api.text_request import TextRequest
from tinkergym.openai_api.token_requests import text_prompts
from tinkergym.testing.bundles import byte_bundle


@pytest.mark.parametrize("more", [{"logprobs": 0}, {"echo": True}])
def test_streams_what_the_whole_response_says(more):
    renderer = Renderer.from_bundle(byte_bundle())
    wanted = TextRequest(model="m", prompt="a", return_token_ids=True, **more)
    prompts, whole = text_prompts(renderer, wanted.prompts), completion(renderer, "é 漢字 end")
    (choice,) = TextChoices(prompts, wanted, "id", 0).whole([whole]).choices
    for cut in range(len(whole.token_ids)):
        stream = TextChoices(prompts, wanted, "id", 0)
        events = [*stream.part(0, part(whole, 0, cut)), *stream.end(0, whole)]
        pieces = [event.choices[0] for event in events]
        assert "".join(piece.text for piece in pieces) == choice.text
        assert [token for piece in pieces for token in piece.token_ids] == choice.token_ids
        if wanted.logprobs is not None:
            offsets = [offset for piece in pieces for offset in piece.logprobs.text_offset]
            assert offsets == choice.logprobs.text_offset
        assert pieces[-1].finish_reason == choice.finish_reason == "stop"
        assert stream.usage().usage.completion_tokens == len(whole.token_ids)


def test_streams_the_prompt_with_the_logprobs_that_one_choice_brings():
    renderer = Renderer.from_bundle(byte_bundle())
    wanted = TextRequest(model="m", prompt="prompt", echo=True, logprobs=1, prompt_logprobs=2, n=2)
    prompts = text_prompts(renderer, wanted.prompts)
    behind = prompts[0].token_ids[1:]
    scores = {
        "prompt_logprobs": [None, *[-1.0 - place for place in range(len(behind))]],
        "prompt_ranks": [None, 1, *[9] * (len(behind) - 1)],
        "top_prompt_logprobs": [None, *[[(behind[0], -1.0), (5, -1.5), (6, -1.7)]] * len(behind)],
    }
    first, second = completion(renderer, "one", **scores), completion(renderer, "two")
    whole = TextChoices(prompts, wanted, "id", 0).whole([first, second])
    began = part(first, 0, 2).model_copy(update=scores)
    echoed, other = whole.choices[0].logprobs.top_logprobs[: len(behind) + 1], renderer.decode(behind[1:2])
    likeliest = renderer.decode(behind[:1])
    assert echoed[:3] == [None, {likeliest: -1.0}, {other: -2.0, likeliest: -1.0}]
    ranked = [place and [one["rank"] for one in place.values()] for place in whole.choices[0].prompt_logprobs]
    assert ranked == [None, [1, 2], *[[9, 1, 2]] * (len(behind) - 1)]
    orders = [
        [(1, part(second, 0, 1)), (0, began), (1, second), (0, first)],
        [(1, part(second, 0, 2)), (1, second), (0, first)],
        [(0, began), (1, part(second, 0, 1)), (0, first), (1, second)],
    ]
    for order in orders:
        stream = TextChoices(prompts, wanted, "id", 0)
        taken = [[*(stream.end if one in (first, second) else stream.part)(at, one)] for at, one in order]
        assert bool(taken[0]) == (order[0][0] == 0)  # The other choice waits.
        events = [event for some in taken for event in some]
        for choice in whole.choices:
            own = [one for event in events for one in event.choices if one.index == choice.index]
            assert "".join(one.text for one in own) == choice.text
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                found = [value for one in own for value in getattr(one.logprobs, name)]
                assert found == getattr(choice.logprobs, name)
            assert own[-1].prompt_logprobs == choice.prompt_logprobs
