"""Tools through the model's own chat template: what the policy reads, and what the environment gets."""

from __future__ import annotations

import pytest

from benchmarks.template_families import shipped_template, template_bundle
from tests.tinkergym.agent.talks import answer
from tests.tinkergym.datasets.test_layouts import CALLING
from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.templates import ChatTemplate
from tinkergym.messages import system, user
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.sampling import Completion
from tinkergym.testing import byte_bundle
from tinkergym.tool_calls.call import CallText
from tinkergym.trajectory.content_parts import ToolCallPart, ToolResultPart
from tinkergym.trajectory.trajectory import StopReason

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "One."}}},
    },
}
OFFER = {"role": "system", "content": "", "tools": [ADD]}
STRICT = CALLING.replace(
    "{% for m in messages %}",
    "{% for m in messages %}{% if m.role == 'tool' and not (loop.previtem.tool_calls or "
    "loop.previtem.role == 'tool') %}{{ raise_exception('a result without a call') }}{% endif %}",
).replace("{{ m.content }}", "{{ m.tool_call_id or '' }}{{ m.content }}")


class Talk:
    """One episode, and the conversation as the template should see it."""

    def __init__(self, bundle, *, prompt=None):
        self.bundle = bundle
        self.renderer = Renderer.from_bundle(bundle)
        plan = EpisodePlan(
            episode_id="e", seed=0, policy="p", decoding=Decoding(max_turn_tokens=999), system_prompt=prompt
        )
        self.loop = AgentLoop(self.renderer, plan)
        self.messages = [system(prompt)] if prompt else []
        self.messages.append(user("1+2?"))
        self.request = self.loop.begin([OFFER, user("1+2?")])
        self.template = ChatTemplate(bundle.chat_template, bundle.special_tokens, [ADD])
        self.tools = self.renderer.with_tools([ADD])

    def says(self, message):
        """Sample what the template writes for this message; return the action."""
        message = {"role": "assistant", "content": "", **message}
        text = self.tools.answer_text(self.messages, message)
        self.messages.append(message)
        return self.samples(text, [result("1")] if "tool_calls" in message else [])

    def samples(self, text, before=()):
        ids = self.tools.encode_answer(text, before)
        return self.loop.receive(
            Completion(
                request_id=self.request.request_id,
                token_ids=ids,
                sampling_logprobs=[-1.0] * len(ids),
                finish_reason="stop",
                policy_version=0,
            )
        )

    def shows(self, *messages, expected=None):
        self.request = self.loop.stepped(list(messages), 0.0, False, False)
        self.messages += messages if expected is None else expected

    @property
    def prompt(self):
        return self.renderer.decode(self.request.prompt_ids)

    @property
    def whole(self):
        return self.template.render(self.messages, add_generation_prompt=True)


def called(a, number=0):
    function = {"name": "add", "arguments": {"a": a}}
    return {"id": f"call{number:05d}", "type": "function", "function": function}


def result(text, number=0):
    return {"role": "tool", "content": text, "name": "add", "tool_call_id": f"call{number:05d}"}


def bundles():
    found = {"plain": byte_bundle(chat_template=CALLING), "strict": byte_bundle(chat_template=STRICT)}
    for name in ("qwen2_5", "qwen3_instruct_2507", "glm4moe", "qwen3_5_nothink"):
        source = shipped_template(name)
        if source is not None:
            found[name] = template_bundle(name, source)
    return found


@pytest.mark.parametrize(("name", "bundle"), bundles().items())
def test_writes_every_prompt_with_calls_and_results_as_template_does(name, bundle):
    talk = Talk(bundle, prompt="Be brief.")
    assert talk.prompt == talk.whole
    assert "add" in talk.prompt
    for number in range(3):
        action = talk.says({"tool_calls": [called(number, number)]})
        assert '<tool_call>\n{"name": "add", "arguments": {"a": ' in action
        assert [one.name for one in action.calls] == ["add"]
        # What the environment leaves out is filled in.
        talk.shows(
            {"role": "tool", "content": f"it is {number}"}, expected=[result(f"it is {number}", number)]
        )
        assert talk.prompt == talk.whole
    assert talk.says({"content": "3"}).endswith("3")
    assert talk.loop.stepped("", 1.0, True, False) is None
    trajectory = talk.loop.trajectory()
    assert len(trajectory.segments) == 1
    assert isinstance(trajectory.turns[0].action[-1], ToolCallPart)
    assert trajectory.turns[1].observation == [ToolResultPart(id="call00000", text="it is 0")]


def test_returns_both_results_to_two_calls_of_an_answer():
    talk = Talk(byte_bundle(chat_template=STRICT))
    talk.says({"content": "Both.", "tool_calls": [called(1, 0), called(2, 1)]})
    talk.shows(result("1", 0), result("2", 1))
    assert talk.prompt == talk.whole
    assert "call00000" in talk.prompt
    assert "call00001" in talk.prompt


def test_answers_unreadable_call_in_a_form_that_template_takes():
    talk = Talk(byte_bundle(chat_template=STRICT))
    action = talk.samples("<call>add {oh}</call>")
    assert action == "<tool_call>\nadd {oh}\n</tool_call>"
    assert not isinstance(action, CallText)
    talk.shows({"role": "tool", "content": "error: unreadable"})
    assert talk.prompt.endswith("user\nerror: unreadable<|im_end|>\n<|im_start|>assistant\n")
    # With another that was read, it is told with that one's result.
    talk.samples('<call>add {"a": 1}</call><call>add {oh}</call>')
    talk.shows({"role": "tool", "content": "1"}, {"role": "tool", "content": "error: unreadable"})
    assert talk.prompt.endswith("tool\ncall000001\nerror: unreadable<|im_end|>\n<|im_start|>assistant\n")


def test_ends_episode_with_reason_for_template_without_tools():
    loop = AgentLoop(Renderer.from_bundle(byte_bundle()), EpisodePlan(episode_id="e", seed=0, policy="p"))
    assert loop.begin([OFFER, user("1+2?")]) is None
    assert loop.stop_reason is StopReason.ENVIRONMENT_ERROR
    assert "tools" in loop.error


def test_reads_nothing_as_a_call_without_tools_of_a_template():
    loop = AgentLoop(
        Renderer.from_bundle(byte_bundle(chat_template=CALLING)),
        EpisodePlan(episode_id="e", seed=0, policy="p"),
    )
    request = loop.begin("hi")
    action = loop.receive(answer(loop._renderer, request, '<call>add {"a": 1}</call>'))
    assert action == '<call>add {"a": 1}</call>'
