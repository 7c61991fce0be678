from __future__ import annotations

import pytest

import tinkergym as tg
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prepare import prepare
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.uploaded_data import DataChunk
from tinkergym.testing.bundles import family_bundle

TALK = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three?"},
        {"role": "assistant", "content": "four"},
    ]
}


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
    with pytest.raises(InvalidRequestError) as caught:
        tokens_of(renderer, row, kind=kind, **options)
    return str(caught.value)


def test_takes_comparison_as_two_answers_to_one_prompt(renderer):
    ((chosen, rejected),) = tokens_of(renderer, PAIR, kind="preference")
    prompt = chosen.trained[0][0]
    assert chosen.token_ids[:prompt] == rejected.token_ids[:prompt]
    assert chosen.trained[0][0] == rejected.trained[0][0]
    assert renderer.decode(chosen.token_ids[prompt:]).startswith("blue")
    after_an_answer = {"messages": TALK["messages"][:4], "chosen": "four", "rejected": "five"}
    ((chosen, _),) = tokens_of(renderer, after_an_answer, kind="preference")
    assert len(chosen.trained) == 1


def test_names_equal_data_alike_and_other_data_differently(renderer):
    def data_id(*rows):
        return prepare(tg.tasks.SequenceTasks(list(rows)), renderer, kind="sft").manifest.data_id

    assert data_id(TALK, ASKED) == data_id(TALK, ASKED) != data_id(ASKED, TALK)


def test_cuts_much_data_into_chunks_that_keep_its_order(renderer):
    rows = [{"prompt": f"{number}?", "completion": str(number)} for number in range(12)]
    prepared = prepare(tg.tasks.SequenceTasks(rows), renderer, kind="sft", chunk_tokens=60)
    assert len(prepared.manifest.chunks) > 3
    answers = [trained_texts(renderer, sequence)[0] for (sequence,) in records(prepared)]
    assert [answer[: len(str(i))] for i, answer in enumerate(answers)] == [str(i) for i in range(12)]


def test_rejects_too_long_row_or_drops_and_counts_it(renderer):
    long = {"prompt": "x " * 3000, "completion": "y"}
    talk = {"messages": [{"role": "user", "content": "x " * 3000}, {"role": "assistant", "content": "y"}]}
    pair = {"prompt": "x " * 3000, "chosen": "y", "rejected": "n"}
    for row, kind, part in (
        (long, "sft", "prompt with completion: 60"),
        (talk, "sft", "messages: 60"),
        (pair, "preference", "prompt with an answer: 60"),
    ):
        assert part in fault(renderer, row, kind=kind)
    prepared = prepare(tg.tasks.SequenceTasks([ASKED, long]), renderer, kind="sft", on_overlong="drop")
    assert (prepared.records, prepared.dropped) == (1, 1)
    fault(renderer, long, on_overlong="drop")  # Nothing is left.
