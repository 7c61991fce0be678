"""A conversation over the OpenAI API has the tokens that it has in training."""

import pytest

from benchmarks.template_families import families, shipped_template, template_bundle
from tests.tinkergym.agent.talks import answer
from tests.tinkergym.agent.test_tool_turns import ADD, OFFER, STRICT
from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError, PromptTooLongError, TemplateError
from tinkergym.messages import assistant, user
from tinkergym.openai_api.chat_choices import chat_choices
from tinkergym.openai_api.chat_request import ChatRequest
from tinkergym.openai_api.text_request import TextRequest
from tinkergym.openai_api.token_requests import (
    Policy,
    chat_prompt,
    refuse_many_prompt_logprobs,
    text_prompts,
    token_requests,
)
from tinkergym.schema.decoding import Decoding
from tinkergym.testing.bundles import byte_bundle, family_bundle

TEMPLATES = {name: source for family in families().values() for name, source in family.items()}
WITH_TOOLS = {
    name: source
    for name in ("qwen2_5", "qwen3_instruct_2507", "glm4moe", "qwen3_5_nothink")
    if (source := shipped_template(name))
}


class Side:
    """A client of the API and an agent loop, in the same conversation."""

    def __init__(self, renderer, *, tools=(), prompt=None, reasoning="keep"):
        self.renderer, self.tools = renderer, list(tools)
        plan = EpisodePlan(
            episode_id="e",
            seed=0,
            policy="p",
            decoding=Decoding(max_turn_tokens=999),
            system_prompt=prompt,
            reasoning=reasoning,
        )
        self.loop = AgentLoop(renderer, plan)
        self.messages = [{"role": "system", "content": prompt}] if prompt else []
        self.request = None

    def hears(self, *messages, first=False):
        seen = [OFFER, *messages] if first and self.tools else list(messages)
        self.request = self.loop.begin(seen) if first else self.loop.stepped(seen, 0.0, False, False)
        assert self.request is not None, self.loop.error

    def asks(self, *messages):
        """Return what the API would sample after these messages."""
        self.messages += messages
        self.wanted = ChatRequest(model="m", messages=self.messages, tools=self.tools)
        self.prompt = chat_prompt(self.renderer, self.wanted)
        return self.prompt.token_ids

    def says(self, text):
        """Let both sample the same tokens; return the message that the client gets."""
        completion = answer(self.renderer, self.request, text)
        self.loop.receive(completion)
        (choice,) = chat_choices(self.prompt, self.wanted, [completion], "id", 0).choices
        message = choice.message.model_dump()
        self.messages.append(message)
        return message


@pytest.mark.parametrize("prompt", [None, "Be brief."])
@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_conversations_to_the_ids_of_training(name, prompt):
    renderer = Renderer.from_bundle(template_bundle(name, TEMPLATES[name]))
    thought = "<think>\nhm\n</think>"
    # Such templates show thoughts only until the next question, as this setting does in training.
    drops = "hm" not in renderer.decode(renderer.start([user("u"), assistant(f"{thought}a"), user("v")]))
    side = Side(renderer, prompt=prompt, reasoning="drop" if drops else "keep")
    for number, question in enumerate(["One é 漢?", "two", "3"]):
        side.hears(user(question), first=number == 0)
        assert side.asks(user(question)) == side.request.prompt_ids
        said = f"answer {number}"
        if drops:
            side.says(thought.removeprefix("<think>\n" if renderer.opens_reasoning else "") + said)
        else:
            side.says(renderer.answer_text([user("u")], assistant(said)))


@pytest.mark.parametrize(("name", "source"), {**WITH_TOOLS, "strict": STRICT}.items())
def test_renders_calls_and_results_to_the_ids_of_training(name, source):
    bundle = byte_bundle(chat_template=source) if name == "strict" else template_bundle(name, source)
    renderer = Renderer.from_bundle(bundle)
    side = Side(renderer, tools=[ADD])
    side.hears(user("1+2?"), first=True)
    assert side.asks(user("1+2?")) == side.request.prompt_ids
    for number in range(2):
        function = {"name": "add", "arguments": {"a": number}}
        call = {"id": f"call{number:05d}", "type": "function", "function": function}
        offered = renderer.with_tools([ADD])
        said = side.says(offered.answer_text([user("1+2?")], {"role": "assistant", "tool_calls": [call]}))
        (made,) = said["tool_calls"]
        assert (made["id"], made["function"]) == (
            call["id"],
            {"name": "add", "arguments": f'{{"a": {number}}}'},
        )
        result = {"role": "tool", "content": "3"}
        side.hears(result)
        assert side.asks({**result, "tool_call_id": made["id"]}) == side.request.prompt_ids


def test_gives_variables_of_the_request_to_the_template():
    template = "{{ mood }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    renderer = Renderer.from_bundle(byte_bundle(chat_template=template))
    asked = {"model": "m", "messages": [user("a")]}
    given = ChatRequest(**asked, chat_template_kwargs={"mood": "glad"})
    assert renderer.decode(chat_prompt(renderer, given).token_ids).startswith("glad<|im_start|>")
    with pytest.raises(TemplateError):
        chat_prompt(renderer, ChatRequest(**asked, reasoning_effort="high"))


def test_refuses_tools_that_the_template_does_not_show():
    renderer = Renderer.from_bundle(family_bundle("llama"))
    wanted = ChatRequest(model="m", messages=[user("a")], tools=[ADD])
    with pytest.raises(TemplateError):
        chat_prompt(renderer, wanted)
    hidden = wanted.model_copy(update={"tool_choice": "none"})
    assert chat_prompt(renderer, hidden).token_ids == renderer.start([user("a")])


def test_limits_completions_to_the_rest_of_the_context():
    renderer = Renderer.from_bundle(byte_bundle(context_length=64))
    wanted = ChatRequest(model="m", messages=[user("a")], n=2, seed=2**64 - 1)
    prompt = chat_prompt(renderer, wanted)
    first, second = token_requests([prompt], wanted, Policy(name="p", version=3), longest=None)
    assert first.max_tokens == 64 - len(prompt.token_ids)
    assert (first.policy, first.policy_version, first.seed, second.seed) == ("p", 3, 2**64 - 1, 0)
    full = ChatRequest(model="m", messages=[user("a" * 60)])
    with pytest.raises(PromptTooLongError):
        token_requests([chat_prompt(renderer, full)], full, Policy(name="p"), longest=None)


def test_bounds_logprobs_of_prompts_by_the_field_that_asked():
    (prompt,) = text_prompts(Renderer.from_bundle(byte_bundle()), [[5] * 10_000])
    chat = {"model": "m", "messages": [user("a")]}
    refuse_many_prompt_logprobs([prompt], ChatRequest(**chat, prompt_logprobs=19, n=9))
    echo = TextRequest(model="m", prompt="a", echo=True, logprobs=20)
    for wanted, field in [(ChatRequest(**chat, prompt_logprobs=20), "prompt_logprobs"), (echo, "logprobs")]:
        with pytest.raises(InvalidRequestError) as refused:
            refuse_many_prompt_logprobs([prompt], wanted)
        assert refused.value.field == field
