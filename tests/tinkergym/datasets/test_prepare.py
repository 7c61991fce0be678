from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinkergym as tg
from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prepare import prepare
from tinkergym.errors import InvalidDataError, InvalidRequestError
from tinkergym.schema.data import DataChunk
from tinkergym.schema.sampling import Completion
from tinkergym.testing.templates import FAMILIES, family_bundle

TALK = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three?"},
        {"role": "assistant", "content": "four"},
    ]
}
SYSTEM, QUESTION, ANSWER = TALK["messages"][:3]
ASKED = {"prompt": "sky?", "completion": "blue"}
PAIR = {"prompt": "sky?", "chosen": "blue", "rejected": "red"}


@pytest.fixture(scope="module")
def renderer():
    return Renderer.from_bundle(family_bundle("qwen"))


def records(prepared):
    return [
        record
        for name in prepared.manifest.chunks
        for record in DataChunk.model_validate_json(prepared.bodies[name]).records
    ]


def tokens_of(renderer, *rows, kind="sft", **options):
    return records(prepare(tg.tasks.SequenceTasks(list(rows)), renderer, kind=kind, **options))


def trained_texts(renderer, sequence):
    return [renderer.decode(sequence.token_ids[start:stop]) for start, stop in sequence.trained]


def fault(renderer, row, kind="sft", **options):
    with pytest.raises(InvalidDataError) as caught:
        tokens_of(renderer, row, kind=kind, **options)
    return str(caught.value)


def played(renderer, messages):
    """What an episode that goes like this conversation leaves in its ledger."""
    plan = EpisodePlan(episode_id="e", seed=0, policy="p", model="m", sampling_seed=0, max_turn_tokens=400)
    loop, place, begun = AgentLoop(renderer, plan), 0, False
    while place < len(messages):
        asked = []
        while messages[place]["role"] != "assistant":
            asked.append(messages[place])
            place += 1
        request = loop.stepped(asked, 0.0, False, False) if begun else loop.begin(asked)
        begun = True
        ids = renderer.encode_answer(messages[place]["content"])
        loop.receive(
            Completion(
                request_id=request.request_id,
                token_ids=ids,
                sampling_logprobs=[-1.0] * len(ids),
                finish_reason="stop",
                policy_version=0,
            )
        )
        place += 1
    loop.stepped("", 0.0, True, False)
    (segment,) = loop.trajectory().segments
    return list(segment.token_ids), list(segment.loss_mask)


WORDS = st.text(alphabet="ab \n<é", min_size=1, max_size=12)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@settings(max_examples=15, deadline=None)
@given(turns=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3))
def test_what_is_trained_is_to_the_token_what_an_episode_would_have_sampled(family, turns):
    renderer = Renderer.from_bundle(family_bundle(family))
    if renderer.opens_reasoning:
        turns = [(question, f"so\n</think>\n{answer}") for question, answer in turns]
    messages = [
        message
        for question, answer in turns
        for message in (
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        )
    ]
    ((sequence,),) = tokens_of(renderer, {"messages": messages})
    mask = [False] * len(sequence.token_ids)
    for start, stop in sequence.trained:
        mask[start:stop] = [True] * (stop - start)
    ids, sampled = played(renderer, messages)
    length = len(mask)  # an episode may end with what follows its last answer
    assert (sequence.token_ids, mask) == (ids[:length], sampled[:length])
    assert not any(sampled[length:])


def test_only_the_answers_are_learned_each_with_the_token_that_ends_it(renderer):
    ((talk,), (asked,)) = tokens_of(renderer, TALK, ASKED)
    stop = renderer.decode([renderer.stop_ids[0]])
    assert trained_texts(renderer, talk) == [f"two{stop}", f"four{stop}"]
    assert trained_texts(renderer, asked) == [f"blue{stop}"]
    ((last,),) = tokens_of(renderer, TALK, answers="last")
    assert trained_texts(renderer, last) == [f"four{stop}"]


def test_a_template_that_rewrites_the_past_is_rendered_anew_for_the_last_answer(monkeypatch):
    bundle = family_bundle("qwen")
    # Says the system prompt in the newest message from the user.
    source = (
        "{%- set head = messages[0].content if messages[0].role == 'system' else '' %}"
        "{%- for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n"
        "{%- if m.role == 'user' and loop.last %}{{ head }} {% endif %}{{ m.content }}<|im_end|>\n"
        "{%- endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    renderer = Renderer.from_bundle(bundle.model_copy(update={"chat_template": source}))
    assert renderer.rewrites_history(TALK["messages"])
    ((last,),) = tokens_of(renderer, TALK, answers="last")
    start, stop = last.trained[0]
    assert last.token_ids[:start] == renderer.start(TALK["messages"][:4])
    assert last.token_ids[start:stop] == renderer.encode_answer("four")
    assert "answers='last'" in fault(renderer, TALK)


def test_a_comparison_is_two_answers_to_one_prompt(renderer):
    ((chosen, rejected),) = tokens_of(renderer, PAIR, kind="preference")
    prompt = chosen.trained[0][0]
    assert chosen.token_ids[:prompt] == rejected.token_ids[:prompt]
    assert chosen.trained[0][0] == rejected.trained[0][0]
    assert renderer.decode(chosen.token_ids[prompt:]).startswith("blue")
    after_an_answer = {"messages": TALK["messages"][:4], "chosen": "four", "rejected": "five"}
    ((chosen, _),) = tokens_of(renderer, after_an_answer, kind="preference")
    assert len(chosen.trained) == 1


def test_equal_data_has_one_name_and_other_data_another(renderer):
    def data_id(*rows):
        return prepare(tg.tasks.SequenceTasks(list(rows)), renderer, kind="sft").manifest.data_id

    assert data_id(TALK, ASKED) == data_id(TALK, ASKED) != data_id(ASKED, TALK)


def test_much_data_is_cut_into_chunks_that_keep_its_order(renderer, monkeypatch):
    monkeypatch.setattr("tinkergym.datasets.prepare.CHUNK_TOKENS", 60)
    rows = [{"prompt": f"{number}?", "completion": str(number)} for number in range(12)]
    prepared = prepare(tg.tasks.SequenceTasks(rows), renderer, kind="sft")
    assert len(prepared.manifest.chunks) > 3
    answers = [trained_texts(renderer, sequence)[0] for (sequence,) in records(prepared)]
    assert [answer[: len(str(i))] for i, answer in enumerate(answers)] == [str(i) for i in range(12)]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"messages": []}, "messages: must be a list of messages, not an empty list"),
        ({"messages": [QUESTION]}, "no message is from the assistant"),
        ({"messages": [{"role": "judge", "content": "x"}]}, "messages[0]: the role must be one of"),
        ({"messages": [{**QUESTION, "weight": 1}]}, "messages[0]: a message has no 'weight'"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "lone surrogates"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0]: the content must be a str"),
        ({"messages": [ANSWER]}, "messages[0].role: an answer cannot follow nothing"),
        ({"messages": [QUESTION, ANSWER, ANSWER]}, "messages[2].role: an answer cannot follow assistant"),
        ({"messages": [QUESTION, SYSTEM, ANSWER]}, "messages[1].role: a system message stands first"),
        ({"messages": [QUESTION, ANSWER], "id": 3}, "'id': unknown key beside messages"),
        ({"prompt": "x"}, "completion: is missing; the row has 'prompt'"),
        ({"prompt": "x", "answer": "y"}, "completion: is missing; the row has 'answer', 'prompt'"),
        ({"prompt": "x", "chosen": "y", "rejected": "z"}, "are for client.preference, tinkergym preference"),
        (
            {"prompt": "x", "completion": ""},
            "completion: is empty, and the policy would learn to say nothing",
        ),
        ({"messages": [QUESTION, {**ANSWER, "content": ""}]}, "messages[1].content: is empty"),
        (
            {"question": "x", "reply": "y"},
            "row: needs messages, or prompt and completion; it has 'question', 'reply'",
        ),
        ({"prompt": "x", "completion": ["y"]}, "completion[0]: a message must be a dict"),
        ({"prompt": "x", "completion": {"a": 1}}, "completion: must be a string or one assistant message"),
        ({"prompt": "x", "completion": "yes<|im_end|>no"}, "messages[1].content: holds the text of a token"),
    ],
)
def test_a_bad_row_is_refused_by_place_field_and_reason(renderer, row, text):
    said = fault(renderer, row)
    assert "task 0: " in said
    assert text in said


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({**PAIR, "rejected": "blue"}, "rejected: it is the chosen answer"),
        ({"prompt": "x", "chosen": "y"}, "rejected: is missing"),
        ({**PAIR, "score": 1}, "'score': unknown key"),
        ({"prompt": "x", "completion": "y"}, "one answer is for client.sft, tinkergym sft"),
        (
            {"messages": TALK["messages"], "chosen": "a", "rejected": "b"},
            "the last message is the assistant's",
        ),
        ({**PAIR, "chosen": [{"role": "user", "content": "x"}]}, "chosen[0].role"),
    ],
)
def test_a_bad_comparison_is_refused_by_field_and_reason(renderer, row, text):
    assert text in fault(renderer, row, kind="preference")


def test_a_row_that_is_too_long_is_refused_or_dropped_and_counted(renderer):
    long = {"prompt": "x " * 3000, "completion": "y"}
    assert "prompt with completion: 60" in fault(renderer, long)
    assert "the model's context is 1024" in fault(renderer, long)
    talk = {"messages": [{"role": "user", "content": "x " * 3000}, {"role": "assistant", "content": "y"}]}
    assert "messages: 60" in fault(renderer, talk)
    pair = {"prompt": "x " * 3000, "chosen": "y", "rejected": "n"}
    assert "prompt with an answer: 60" in fault(renderer, pair, kind="preference")
    prepared = prepare(tg.tasks.SequenceTasks([ASKED, long]), renderer, kind="sft", on_overlong="drop")
    assert (prepared.records, prepared.dropped) == (1, 1)
    assert "all of its 1 rows are longer" in fault(renderer, long, on_overlong="drop")


def test_a_line_that_breaks_off_is_named_by_one_line_and_its_column(renderer, tmp_path):
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps(ASKED) + '\n{"prompt": "x",\n', encoding="utf-8")
    with pytest.raises(InvalidDataError) as caught:
        prepare(file, renderer, kind="sft")
    assert caught.value.message.startswith("chats.jsonl, line 2: the line is no JSON: ")
    assert caught.value.message.endswith(" at column 16")
    with pytest.raises(InvalidRequestError, match=r"is no JSON: .* at column 16$"):
        tg.tasks.JsonlTasks(file).read(1)


def test_a_file_names_its_lines_as_an_editor_does(renderer, tmp_path):
    file = tmp_path / "chats.jsonl"
    unreadable = {"prompt": 1, "completion": "x"}
    lines = [json.dumps(ASKED), "", "{broken", json.dumps(unreadable), '{"a": NaN}', "[1]"]
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InvalidDataError) as caught:
        prepare(file, renderer, kind="sft")
    assert caught.value.message.startswith("chats.jsonl, line 3: the line is no JSON")
    assert "line 4: prompt: must be a list of messages, not int" in caught.value.hint
    assert "line 5: the line is no JSON: NaN" in caught.value.hint
    assert "line 6: row: must be a JSON object, not list" in caught.value.hint
    file.write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(InvalidDataError, match="no UTF-8"):
        prepare(file, renderer, kind="sft")
    file.write_text("\n\n")
    with pytest.raises(InvalidDataError, match="has no rows"):
        prepare(file, renderer, kind="sft")
    with pytest.raises(InvalidDataError, match="cannot be read"):
        prepare(tmp_path / "nowhere.jsonl", renderer, kind="sft")
    with pytest.raises(InvalidRequestError, match="SequenceTasks"):
        prepare([ASKED], renderer, kind="sft")
