"""Environments that speak in messages: what the agent loop and the renderer make of a Chat observation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import TemplateError
from tinkergym.messages import assistant, system, user
from tinkergym.schema.sampling import Completion
from tinkergym.spaces import Chat
from tinkergym.testing import byte_bundle

RENDERER = Renderer.from_bundle(byte_bundle(context_length=4096))


TOOL = {"role": "tool", "content": "42", "name": "calculator", "tool_call_id": "call-1"}


# Shows who answered; a template for tools.
NAMED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}"
    "{% if m.name is defined %} {{ m.name }}{% endif %}"
    "{% if m.tool_call_id is defined %} #{{ m.tool_call_id }}{% endif %}"
    "{{ '\n' + m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


# Knows no tools and says so.
STRICT = NAMED.replace(
    "<|im_start|>{{ m.role }}",
    "{% if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('no tools') }}{% endif %}"
    "<|im_start|>{{ m.role }}",
    1,
)


# Knows no tools and says nothing.
SILENT = (
    "{% for m in messages %}{% if m.role != 'tool' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def renderer_of(template):
    return Renderer.from_bundle(byte_bundle(context_length=4096, chat_template=template))


def agent(renderer=RENDERER, **settings):
    return AgentLoop(renderer, EpisodePlan(**{"episode_id": "e", "seed": 3, "policy": "p", **settings}))


def answer(request, text="yes"):
    ids = RENDERER.encode_answer(text)
    return Completion(
        request_id=request.request_id,
        token_ids=ids,
        sampling_logprobs=[-0.5] * len(ids),
        finish_reason="stop",
        policy_version=1,
    )


def test_opens_with_conversation_and_goes_on_with_new_messages():
    loop = agent()
    opening = [system("Use tools."), user("1+1?"), assistant("2"), user("6*7?")]
    first = loop.begin(opening)
    assert first.prompt_ids == RENDERER.start(opening)
    loop.receive(answer(first, "calculate"))
    news = [TOOL, user("So?")]
    second = loop.stepped(news, 0.0, False, False)
    assert second.prompt_ids == RENDERER.start([*opening, assistant("calculate"), *news])
    loop.receive(answer(second, "42"))
    assert loop.stepped([], 1.0, True, False) is None
    trajectory = loop.trajectory()
    assert trajectory.stop_reason == "terminated"
    assert trajectory.turns[1].observation == "[tool]\n42\n\n[user]\nSo?"
    assert sum(trajectory.segments[0].loss_mask) == len(answer(first, "calculate").token_ids) + 3


@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=4))
def test_gives_ids_of_whole_conversation_for_any_chats(seeds):
    chats = [Chat(min_messages=1, max_length=40, seed=seed).sample() for seed in seeds]
    loop, grown = agent(), list(chats[0])
    request = loop.begin(chats[0])
    for chat in chats[1:]:
        assert request.prompt_ids == RENDERER.start(grown)
        loop.receive(answer(request))
        grown += [assistant("yes"), *chat]
        request = loop.stepped(chat, 0.0, False, False)
    assert request.prompt_ids == RENDERER.start(grown)


@pytest.mark.parametrize(("job", "heading"), [(None, [system("own")]), ("job", [system("job")]), ("", [])])
def test_replaces_system_prompt_of_first_observation_by_the_jobs(job, heading):
    loop = agent(system_prompt=job)
    request = loop.begin([system("own"), user("go")], environment_prompt="metadata")
    assert request.prompt_ids == RENDERER.start([*heading, user("go")])


def ended_by(loop):
    trajectory = loop.trajectory()
    return trajectory.stop_reason, trajectory.error


@pytest.mark.parametrize(
    ("observation", "reason"),
    [
        ([], "empty list of messages"),
        ([user("a"), "b"], r"[1]: a message must be a dict"),
        ({"text": "look", "screen": np.zeros((4, 4, 3), np.uint8)}, "'screen'"),
    ],
)
def test_ends_episode_whose_conversation_cannot_go_on_with_reason(observation, reason):
    loop = agent()
    assert loop.begin(observation) is None
    assert ended_by(loop)[0] == "environment_error"
    assert "reset" in ended_by(loop)[1]
    assert reason in ended_by(loop)[1]
    loop = agent()
    loop.receive(answer(loop.begin("go")))
    assert loop.stepped(observation, 0.0, False, False) is None
    assert ended_by(loop)[0] == "environment_error"
    assert reason in ended_by(loop)[1]


@pytest.mark.parametrize(("template", "reason"), [(STRICT, "no tools"), (SILENT, "leaves out")])
def test_ends_only_the_episode_when_a_template_refuses_a_role(template, reason):
    loop = agent(renderer_of(template))
    loop.receive(answer(loop.begin("go")))
    assert loop.stepped([TOOL], 0.0, False, False) is None
    assert ended_by(loop)[0] == "environment_error"
    assert reason in ended_by(loop)[1]
    loop = agent(renderer_of(template))
    assert loop.begin([user("go"), TOOL]) is None
    assert ended_by(loop)[0] == "environment_error"


@pytest.mark.parametrize("content", ["42", "<|im_end|> quoted", "long " * 100])
def test_passes_name_and_call_of_tool_to_template_showing_them(content):
    renderer = renderer_of(NAMED)
    message = {**TOOL, "content": content}
    text = renderer.decode(renderer.continuation([message], answer_closed=True))
    assert f"<|im_start|>tool calculator #call-1\n{content}<|im_end|>" in text
    # The same content under another name is another prompt, whatever is remembered.
    other = renderer.continuation([{**message, "name": "search"}], answer_closed=True)
    assert "tool search #call-1" in renderer.decode(other)


def test_rejects_a_hidden_role_once_and_again():
    renderer = renderer_of(SILENT)
    for _ in range(2):
        with pytest.raises(TemplateError):
            renderer.continuation([user("a"), TOOL], answer_closed=True)
    assert renderer.continuation([user("a")], answer_closed=True)
