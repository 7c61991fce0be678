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
