"""The ledger against what chat templates of four shapes write."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.templates import ChatTemplate
from tinkergym.messages import assistant, system, user
from tinkergym.schema.sampling import Completion
from tinkergym.testing import FAMILIES, family_bundle, ledger_violations

BUNDLES = {name: family_bundle(name) for name in FAMILIES}
RENDERERS = {name: Renderer.from_bundle(bundle) for name, bundle in BUNDLES.items()}
family = pytest.mark.parametrize("name", list(FAMILIES))

WORDS = st.text(st.sampled_from("abc d.12\né世"), max_size=12)
# An answer that begins with white space would be spelt otherwise where a template writes it behind a newline.
ANSWERS = st.builds(
    lambda thinks, text: ("<think>\nhm\n</think>\n\n" if thinks else "") + text,
    st.booleans(),
    WORDS.map(str.strip),
)
TALKS = st.lists(st.tuples(WORDS, ANSWERS), min_size=2, max_size=4)


def answer(renderer, request, text):
    ids = renderer.encode_answer(text)
    return Completion(
        request_id=request.request_id,
        token_ids=ids,
        sampling_logprobs=[-0.5] * len(ids),
        finish_reason="stop",
        policy_version=0,
    )


def talk(renderer, turns, *, prompt=None, reasoning="keep"):
    """Play a conversation; return its trajectory, requests, answers, and the messages before each answer."""
    loop = AgentLoop(
        renderer, EpisodePlan(episode_id="e", seed=0, policy="p", system_prompt=prompt, reasoning=reasoning)
    )
    messages = [system(prompt)] if prompt else []
    requests, completions, conversations = [], [], []
    request = loop.begin(turns[0][0])
    for number, (question, text) in enumerate(turns):
        messages.append(user(question))
        conversations.append(list(messages))
        requests.append(request)
        completions.append(answer(renderer, request, text))
        loop.receive(completions[-1])
        messages.append(assistant(text))
        following = turns[number + 1][0] if number + 1 < len(turns) else "bye"
        request = loop.stepped(following, 0.0, number + 1 == len(turns), False)
    return loop.trajectory(), requests, completions, conversations


def rendered(bundle, messages):
    """Return the ids that `apply_chat_template` gives, by jinja2 and tokenizers alone."""
    template = ChatTemplate(bundle.chat_template, bundle.special_tokens)
    text = template.render(messages, add_generation_prompt=True)
    return Tokenizer.from_str(bundle.tokenizer_json).encode(text, add_special_tokens=False).ids


def differs_only_inside(spans, ours, theirs):
    """Whether two id lists agree but for what stands in our spans, whatever stands there in theirs."""
    pieces, place = [], 0
    for start, end in spans:
        pieces.append(ours[place:start])
        place = end
    pieces.append(ours[place:])
    first, *middle, last = pieces if len(pieces) > 1 else [*pieces, []]
    if theirs[: len(first)] != first:
        return False
    at = len(first)
    for piece in middle:
        at = next((i for i in range(at, len(theirs)) if theirs[i : i + len(piece)] == piece), len(theirs) + 1)
        at += len(piece)
    return at + len(last) <= len(theirs) and theirs[len(theirs) - len(last) :] == last


@family
@pytest.mark.parametrize("prompt", [None, "Be brief."])
@given(turns=TALKS)
@settings(max_examples=25, deadline=None)
def test_what_stands_around_the_answers_is_what_the_template_writes(name, prompt, turns):
    if name == "gemma" and prompt:
        prompt = None  # it has no system role; how one is folded is tested with the renderer
    bundle, renderer = BUNDLES[name], RENDERERS[name]
    trajectory, requests, completions, conversations = talk(renderer, turns, prompt=prompt)
    assert ledger_violations(trajectory, completions, requests) == []
    for number, (request, messages) in enumerate(zip(requests, conversations, strict=True)):
        segment = trajectory.turns[number].segment
        earlier = [(t.start, t.end) for t in trajectory.turns[:number] if t.segment == segment]
        assert differs_only_inside(earlier, request.prompt_ids, rendered(bundle, messages))


@family
@given(turns=TALKS)
@settings(max_examples=25, deadline=None)
def test_dropped_reasoning_is_nowhere_in_later_prompts_and_stays_where_it_was_sampled(name, turns):
    renderer = RENDERERS[name]
    trajectory, requests, completions, _ = talk(renderer, turns, prompt="Be brief.", reasoning="drop")
    assert ledger_violations(trajectory, completions, requests) == []
    assert all("think>" not in renderer.decode(request.prompt_ids) for request in requests)
    assert [turn.action for turn in trajectory.turns] == [text for _, text in turns]
    if not renderer.rewrites_history([system("s")]):
        edits = sum("think>" in text for _, text in turns[:-1])
        assert len(trajectory.segments) == 1 + edits


@given(turns=TALKS)
@settings(max_examples=25, deadline=None)
def test_a_template_that_drops_reasoning_itself_gives_the_prompts_of_a_loop_that_drops_it(turns):
    _, requests, _, conversations = talk(RENDERERS["qwen"], turns, reasoning="drop")
    for request, messages in zip(requests, conversations, strict=True):
        assert request.prompt_ids == rendered(BUNDLES["qwen"], messages)


def test_kept_reasoning_stays_in_one_segment_though_the_template_would_drop_it():
    turns = [("one", "<think>\nhm\n</think>\n\na"), ("two", "b"), ("three", "c")]
    trajectory, requests, _, _ = talk(RENDERERS["qwen"], turns)
    assert len(trajectory.segments) == 1
    assert "<think>\nhm\n</think>\n\na<|im_end|>" in RENDERERS["qwen"].decode(requests[-1].prompt_ids)


def test_a_template_that_moves_the_system_prompt_gets_a_segment_for_each_turn():
    turns = [("one", "a"), ("two", "b"), ("three", "c")]
    trajectory, requests, _, _ = talk(RENDERERS["mistral"], turns, prompt="Be brief.")
    assert len(trajectory.segments) == 3
    expected = "<s>[INST] one[/INST] a</s>[INST] two[/INST] b</s>[INST] Be brief.\n\nthree[/INST]"
    assert RENDERERS["mistral"].decode(requests[-1].prompt_ids) == expected
    assert len(talk(RENDERERS["mistral"], turns)[0].segments) == 1


def test_an_answer_that_a_limit_cut_inside_its_reasoning_is_dropped_to_its_end():
    trajectory, requests, _, _ = talk(
        RENDERERS["llama"], [("one", "<think>\nand so on"), ("two", "b")], reasoning="drop"
    )
    assert len(trajectory.segments) == 2
    assert "and so on" not in RENDERERS["llama"].decode(requests[1].prompt_ids)


def test_a_prompt_that_opens_the_reasoning_lets_the_answer_close_it():
    template = FAMILIES["llama"].template.replace(
        "assistant<|end_header_id|>\\n\\n", "assistant<|end_header_id|>\\n\\n<think>\\n"
    )
    bundle = BUNDLES["llama"].model_copy(update={"chat_template": template})
    renderer = Renderer.from_bundle(bundle)
    assert renderer.opens_reasoning
    assert not renderer.rewrites_history([user("u")])
    turns = [("one", "hm\n</think>\n\na"), ("two", "cut off"), ("three", "c")]
    _, requests, _, _ = talk(renderer, turns, reasoning="drop")
    text = renderer.decode(requests[-1].prompt_ids)
    assert "hm" not in text
    assert "cut off" not in text
    assert "\n\na<|eot_id|>" in text
