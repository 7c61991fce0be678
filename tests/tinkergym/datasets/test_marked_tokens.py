from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinkergym as tg
from tests.tinkergym.agent.talks import answer
from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prepare import prepare
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.uploaded_data import DataChunk
from tinkergym.testing.bundles import FAMILIES, family_bundle

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


def played(renderer, messages):
    """What an episode that goes like this conversation leaves in its ledger."""
    plan = EpisodePlan(
        episode_id="e", seed=0, policy="p", model="m", decoding=Decoding(max_turn_tokens=400, seed=0)
    )
    loop, place, begun = AgentLoop(renderer, plan), 0, False
    while place < len(messages):
        asked = []
        while messages[place]["role"] != "assistant":
            asked.append(messages[place])
            place += 1
        request = loop.stepped(asked, 0.0, False, False) if begun else loop.begin(asked)
        begun = True
        loop.receive(answer(renderer, request, messages[place]["content"]))
        place += 1
    loop.stepped("", 0.0, True, False)
    (segment,) = loop.trajectory().segments
    return list(segment.token_ids), list(segment.loss_mask)


WORDS = st.text(alphabet="ab \n<é", min_size=1, max_size=12)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@settings(max_examples=15, deadline=None)
@given(turns=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3))
def test_trains_to_the_token_on_what_an_episode_would_sample(family, turns):
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


def test_learns_only_answers_each_with_its_ending_token(renderer):
    ((talk,), (asked,)) = tokens_of(renderer, TALK, ASKED)
    stop = renderer.decode([renderer.stop_ids[0]])
    assert trained_texts(renderer, talk) == [f"two{stop}", f"four{stop}"]
    assert trained_texts(renderer, asked) == [f"blue{stop}"]
    ((last,),) = tokens_of(renderer, TALK, answers="last")
    assert trained_texts(renderer, last) == [f"four{stop}"]


def test_renders_anew_for_last_answer_when_template_rewrites_past(monkeypatch):
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
