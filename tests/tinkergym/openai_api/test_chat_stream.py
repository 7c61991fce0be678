"""A stream says what the whole response says, wherever its parts are cut."""

import random

import pytest

from tests.tinkergym.agent.test_tool_turns import ADD
from tests.tinkergym.datasets.test_layouts import CALLING
from tinkergym.agent.renderer import Renderer
from tinkergym.openai_api.chat_choices import chat_choices
from tinkergym.openai_api.chat_request import ChatRequest
from tinkergym.openai_api.chat_stream import ChatStream
from tinkergym.openai_api.token_requests import chat_prompt
from tinkergym.schema.sampling import Completion, CompletionPart
from tinkergym.testing.bundles import byte_bundle

CALL = '<call>add {"a": 1}</call>'
TEXTS = [
    *(
        "hello",
        "",
        "é 漢字 🙂",
        f"I add. \n{CALL}",
        CALL,
        f"{CALL}{CALL}",
        "<call>add",
        "<call>add {}</call> x",
    ),
    f"<think>\n{CALL}\n</think>\n\nno call",
    f"<think>\n{CALL}\n</think>\n\n{CALL}{CALL}",
    f'{CALL}<call>add {{"a": "</call>"}}</call>{CALL}',
    f"{CALL}<call>add</call>{CALL}",
    "spaces   \n",
]


@pytest.fixture(scope="module")
def renderer():
    return Renderer.from_bundle(byte_bundle(chat_template=CALLING))


def completion(renderer, text, **more):
    ids = renderer.encode_answer(text)
    settings = {"finish_reason": "stop", "policy_version": 3, **more}
    logprobs = [-0.5 * place for place in range(len(ids))]
    return Completion(request_id="r", token_ids=ids, sampling_logprobs=logprobs, **settings)


def part(whole, start, end):
    return CompletionPart(
        request_id="r",
        start=start,
        token_ids=whole.token_ids[start:end],
        sampling_logprobs=whole.sampling_logprobs[start:end],
        policy_version=3,
    )


def joined(events):
    """Return the message, the tokens and the reason that the events of one choice say."""
    content, calls, ids, logprobs, reasons = None, [], [], [], []
    for event in events:
        (choice,) = event.choices
        if choice.delta.content:
            content = (content or "") + choice.delta.content
        calls += [(call.index, call.id, call.function) for call in choice.delta.tool_calls or ()]
        ids += choice.token_ids or []
        logprobs += choice.logprobs.content if choice.logprobs else []
        reasons += [choice.finish_reason] if choice.finish_reason else []
    return content, calls, ids, logprobs, reasons


@pytest.mark.parametrize("tools", [[], [ADD]])
@pytest.mark.parametrize("text", TEXTS)
def test_says_what_the_whole_response_says(renderer, text, tools):
    wanted = ChatRequest(
        model="m",
        messages=[{"role": "user", "content": "u"}],
        tools=tools,
        logprobs=True,
        return_token_ids=True,
    )
    prompt, whole = chat_prompt(renderer, wanted), completion(renderer, text)
    (choice,) = chat_choices(prompt, wanted, [whole], "id", 0).choices
    made = [(at, call.id, call.function) for at, call in enumerate(choice.message.tool_calls or ())]
    said = (choice.message.content or None, made, whole.token_ids)
    most = len(whole.token_ids) - 1
    for cuts in ([], range(1, most), *([cut] for cut in range(1, most)), [most]):
        stream, events, start = ChatStream(prompt, wanted, "id", 0), [], 0
        for end in cuts:
            events += stream.part(0, part(whole, start, end))
            start = end
        events += stream.end(0, whole)
        content, calls, ids, logprobs, reasons = joined(events)
        assert (content, calls, ids) == said
        assert logprobs == choice.logprobs.content
        assert reasons == [choice.finish_reason]


def test_takes_tokens_again_that_a_restarted_engine_repeats(renderer):
    wanted = ChatRequest(model="m", messages=[{"role": "user", "content": "u"}], return_token_ids=True)
    prompt, whole = chat_prompt(renderer, wanted), completion(renderer, "a longer answer")
    drawn = random.Random(3)
    stream = ChatStream(prompt, wanted, "id", 0)
    events = [*stream.part(0, part(whole, 0, 5))]
    for _ in range(20):
        start = drawn.randrange(len(whole.token_ids) - 1)
        events += stream.part(0, part(whole, start, drawn.randrange(start, len(whole.token_ids)) or 1))
    events += stream.end(0, whole)
    assert joined(events)[:3] == ("a longer answer", [], whole.token_ids)


def called_by_parts(renderer, text, **more):
    """Return how many calls each character brings, given one by one."""
    wanted = ChatRequest(model="m", messages=[{"role": "user", "content": "u"}], tools=[ADD], **more)
    prompt, whole = chat_prompt(renderer, wanted), completion(renderer, text)
    stream = ChatStream(prompt, wanted, "id", 0)
    return [len(joined(stream.part(0, part(whole, at, at + 1)))[1]) for at in range(len(text))]


def test_sends_each_call_when_it_is_complete(renderer):
    called = called_by_parts(renderer, f"I add. {CALL} {CALL} then")
    first = len(f"I add. {CALL}")
    second = first + len(f" {CALL}")
    assert [at for at, count in enumerate(called, 1) if count] == [first, second]


def test_sends_no_call_that_an_open_thought_mentions(renderer):
    template = CALLING.replace("assistant\n", "assistant\n<think>").replace(
        "{{ m.content }}", "{% if m.role == 'assistant' %}<think>{% endif %}{{ m.content }}"
    )
    thinking = Renderer.from_bundle(byte_bundle(chat_template=template))
    assert sum(called_by_parts(thinking, f"I could {CALL} or not")) == 0
    assert called_by_parts(thinking, f"No {CALL}</think>{CALL} ")[-2:] == [1, 0]
    assert sum(called_by_parts(renderer, f"<think>{CALL} or")) == 0


def test_sends_no_call_behind_a_stop_string(renderer):
    assert sum(called_by_parts(renderer, f"{CALL}STOP{CALL} ", stop="STOP")) == 1


def test_ends_with_prompt_logprobs_that_a_part_brought(renderer):
    wanted = ChatRequest(model="m", messages=[{"role": "user", "content": "u"}], prompt_logprobs=1, n=2)
    prompt = chat_prompt(renderer, wanted)
    places = [None, *prompt.token_ids[1:]]
    scores = {
        "prompt_logprobs": [place and -1.0 for place in places],
        "prompt_ranks": [place and 1 for place in places],
        "top_prompt_logprobs": [place and [(place, -1.0)] for place in places],
    }
    bare = completion(renderer, "one")
    whole = chat_choices(prompt, wanted, [bare.model_copy(update=scores), bare], "id", 0)
    stream = ChatStream(prompt, wanted, "id", 0)
    first = part(bare, 0, 2).model_copy(update=scores)
    events = [*stream.part(0, first), *stream.end(0, bare), *stream.end(1, bare)]
    found = [event.prompt_logprobs for event in events if event.prompt_logprobs]
    assert found == [whole.prompt_logprobs]
