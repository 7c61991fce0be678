"""Prompts and stop tokens with the chat templates that `trl` ships, and with our own of families it lacks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.template_families import OURS, families, shipped_names, shipped_template, template_bundle
from benchmarks.templates import play_template
from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.prompt_check import TemplateReference
from tinkergym.agent.renderer import TURNS_TRIED, Renderer
from tinkergym.agent.round_trip import play_conversation
from tinkergym.datasets.marked_tokens import conversation_tokens
from tinkergym.errors import TemplateError
from tinkergym.messages import assistant, system, user
from tinkergym.schema.jobs.parts import Limits
from tinkergym.schema.sampling import Completion

TOOL = {"role": "tool", "content": "42"}
SOURCES = {name: source for templates in OURS.values() for name, source in templates.items()}
HARMONY = (
    "<|channel|>analysis<|message|>I take b2.<|end|><|start|>assistant<|channel|>final<|message|>b2<|return|>"
)


def bundle_of(name):
    source = SOURCES.get(name) or shipped_template(name)
    if source is None:
        pytest.skip(f"trl, which ships the template {name}, is not installed")
    return template_bundle(name, source)


def ids_of(renderer, text):
    """Return the ids of text in which special tokens count."""
    return list(renderer._tokenizer.encode(text, add_special_tokens=False).ids)


def talk(renderer, answers, replies):
    """Play a conversation; return its prompts as text, the actions and the trajectory."""
    plan = EpisodePlan(episode_id="e", seed=0, policy="p", limits=Limits(max_turns=len(answers)))
    loop = AgentLoop(renderer, plan)
    request, prompts, actions = loop.begin("hi"), [], []
    for number, (answer, reply) in enumerate(zip(answers, replies, strict=True)):
        prompts.append(renderer.decode(request.prompt_ids))
        ids = ids_of(renderer, answer)
        completion = Completion(
            request_id=request.request_id,
            token_ids=ids,
            sampling_logprobs=[-1.0] * len(ids),
            finish_reason="stop" if ids[-1] in renderer.stop_ids else "length",
            policy_version=0,
        )
        actions.append(loop.receive(completion))
        request = loop.stepped(reply, 0.0, number + 1 == len(answers), False)
    return prompts, actions, loop.trajectory()


KINDS = {"cohere2", "deepseekv3", "gemma4_v5", "gptoss", "lfm2_2_5_v2", "llama3_2", "qwen3_8", "smolvlm"}
"""Of the templates that `trl` ships, those that all tests run: versions of a family differ in little."""


@pytest.mark.parametrize(
    "name",
    [
        *(
            pytest.param(name, marks=[] if name in KINDS else [pytest.mark.full("more templates")])
            for name in shipped_names()
        ),
        *SOURCES,
    ],
)
def test_shows_scripted_episodes_what_the_template_writes(name):
    bundle = bundle_of(name)
    try:
        outcome = play_template(bundle, 2)
    except TemplateError as error:
        pytest.skip(f"no template for text alone: {error}")
    assert outcome.faults == []
    assert outcome.episodes == 2


@pytest.mark.parametrize(
    ("name", "stops"),
    [
        ("gptoss", {"<eos>", "<|return|>", "<|call|>"}),
        ("glm4moe", {"<eos>", "<|user|>", "<|observation|>"}),
        ("glm4", {"<eos>", "<|user|>", "<|observation|>"}),
        ("phi3", {"<eos>", "<|end|>"}),
        ("qwen3", {"<eos>", "<|im_end|>"}),
        ("llama3_1", {"<eos>", "<|eot_id|>"}),
        ("gemma4_v5", {"<eos>", "<turn|>", "<|tool_response>"}),
        ("cohere2", {"<eos>", "<|END_OF_TURN_TOKEN|>"}),
    ],
)
def test_reads_tokens_that_end_a_turn_off_the_template(name, stops):
    renderer = Renderer.from_bundle(bundle_of(name))
    assert {renderer.decode([token]) for token in renderer.stop_ids} == stops


def test_ends_harmony_turn_after_final_channel_which_environment_gets():
    renderer = Renderer.from_bundle(bundle_of("gptoss"))
    prompts, actions, trajectory = talk(renderer, [HARMONY, HARMONY], ["and?", "bye"])
    assert actions == ["b2", "b2"]
    # The template shows the past without the analysis and with another end, so each turn is a segment.
    expected = "<|channel|>final<|message|>b2<|end|><|start|>user<|message|>and?<|end|><|start|>assistant"
    assert prompts[1].endswith("<|start|>assistant" + expected)
    assert len(trajectory.segments) == 2
    assert renderer.rewrites_history([user("u")])
    assert renderer.decode(renderer.encode_answer("b2")) == "<|channel|>final<|message|>b2<|return|>"


@pytest.mark.parametrize("name", ["glm4", "glm4moe"])
def test_begins_next_turn_of_glm_by_the_token_ending_one(name):
    renderer = Renderer.from_bundle(bundle_of(name))
    answers = ["b2<|user|>", "c3<|observation|>", "cut"]
    prompts, _, trajectory = talk(renderer, answers, ["and?", [TOOL], "bye"])
    assert prompts[1].endswith("b2<|user|>\nand?<|assistant|>" + ("\n" if name == "glm4" else ""))
    assert prompts[2].count("<|observation|>") == prompts[1].count("<|user|>") - 1 == 1
    assert len(trajectory.segments) == 1


@pytest.mark.parametrize("name", ["phi3", "phi3_5"])
def test_ignores_for_phi_what_follows_only_the_last_answer(name):
    renderer = Renderer.from_bundle(bundle_of(name))
    prompts, _, trajectory = talk(renderer, ["b2<|end|>", "c3<|end|>"], ["and?", "bye"])
    assert prompts[1].endswith("b2<|end|>\n<|user|>\nand?<|end|>\n<|assistant|>\n")
    assert len(trajectory.segments) == 1
    assert not renderer.rewrites_history([user("u")])


def test_opens_segment_when_answer_ends_unlike_the_template():
    renderer = Renderer.from_bundle(bundle_of("qwen3"))
    prompts, _, trajectory = talk(renderer, ["b2<eos>", "c3<|im_end|>", "d"], ["and?", "so?", "bye"])
    assert "<eos>" not in prompts[1]
    assert prompts[1].endswith("b2<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n")
    assert [turn.segment for turn in trajectory.turns] == [0, 1, 1]


@pytest.mark.parametrize("window", [7, 2 * TURNS_TRIED + 5])
def test_opens_segments_when_messages_leave_a_templates_window(window):
    source = SOURCES["sliding"].replace("-7:", f"-{window}:")
    bundle = template_bundle("sliding", source)
    renderer, reference = Renderer.from_bundle(bundle), TemplateReference(bundle)
    turns = window // 2 + 3
    replies = [[user(f"reply {number}")] for number in range(turns)]
    answers = [renderer.encode_answer(f"b{number}") for number in range(turns)]
    played = play_conversation(renderer, reference, [system("s"), user("u")], replies, answers)
    assert played.fault == ""
    assert played.segments > 1


def test_renders_anew_when_template_rewrites_later_tool_answers():
    renderer = Renderer.from_bundle(bundle_of("deepseekv3"))
    answers = ["b2<｜end▁of▁sentence｜>"] * 3
    prompts, _, _ = talk(renderer, answers, [[TOOL], [TOOL], "bye"])
    assert prompts[2].count("<｜tool▁outputs▁begin｜>") == 1


def test_finds_doubled_token(monkeypatch):
    bundle = bundle_of("glm4")
    renderer, reference = Renderer.from_bundle(bundle), TemplateReference(bundle)
    monkeypatch.setattr(renderer, "delta", lambda _, reply: renderer.continuation(reply, answer_closed=False))
    played = play_conversation(
        renderer, reference, [user("u")], [[user("v")]], [renderer.encode_answer("b2", [user("v")])]
    )
    assert "<|user|>" in played.fault


def test_finds_unnoticed_window(monkeypatch):
    bundle = bundle_of("sliding")
    renderer, reference = Renderer.from_bundle(bundle), TemplateReference(bundle)
    monkeypatch.setattr(renderer, "grows", lambda *_: True)
    replies = [[user(str(number))] for number in range(6)]
    answers = [renderer.encode_answer("b2")] * 6
    assert play_conversation(renderer, reference, [user("u")], replies, answers).fault


def test_ends_written_answers_of_glm_with_next_turns_token():
    renderer = Renderer.from_bundle(bundle_of("glm4"))
    talked = [user("a"), assistant("call"), TOOL, assistant("b2"), user("c"), assistant("d")]
    sequence = conversation_tokens(renderer, talked)
    texts = [renderer.decode(sequence.token_ids[start:end]) for start, end in sequence.trained]
    assert texts == ["call<|observation|>", "b2<|user|>", "d<|user|>"]
    assert renderer.decode(sequence.token_ids).count("<|user|>") == 3


MARKERS = [
    "tinkergymAnswer7f3a",
    "tinkergymLiteral7f3aNo0End",
    "tinkergymContent7f3a",
    "\U0010fffd",
    "<|im_end|>",
    "<|im_start|>system\n",
    "<",
    "|im_end|>",
    " ",
    "\n",
]


@given(
    parts=st.lists(st.sampled_from(MARKERS), max_size=6), more=st.lists(st.sampled_from(MARKERS), max_size=6)
)
@settings(max_examples=60, deadline=None)
def test_passes_observation_as_is_whatever_marks_it_holds(parts, more):
    renderer = RENDERER
    first, second = "x" + "".join(parts), "y" + "".join(more)
    opened = renderer.start([system(second), user(first)])
    assert renderer.decode(opened) == (
        f"<|im_start|>system\n{second}<|im_end|>\n<|im_start|>user\n{first}<|im_end|>\n<|im_start|>assistant\n"
    )
    delta = renderer.delta(renderer.encode_answer("a"), [user(first), user(second)])
    assert renderer.decode(delta) == (
        f"\n<|im_start|>user\n{first}<|im_end|>\n<|im_start|>user\n{second}<|im_end|>\n<|im_start|>assistant\n"
    )
    start, end = ids_of(renderer, "<|im_start|><|im_end|>")
    assert (opened.count(start), opened.count(end)) == (3, 2)
    assert (delta.count(start), delta.count(end)) == (3, 2)


RENDERER = Renderer.from_bundle(template_bundle("window", SOURCES["sliding"]))


def test_has_template_for_every_family_of_the_benchmark():
    if not shipped_names():
        pytest.skip("trl is not installed")
    assert all(families()[family] for family in ("Llama-3", "Qwen 3.5", "Gemma 4", "Phi", "gpt-oss", "GLM-4"))
