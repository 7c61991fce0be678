"""More public reports about the way from rows to tokens, found in the same trackers."""

from __future__ import annotations

import json

import pytest

from backend.jobs.dataset_records import batch_numbers
from tests.public_reports.test_data_containers import refused, renderer, sequence
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prepare import prepare
from tinkergym.schema.parsing import parse_spec
from tinkergym.testing.bundles import family_bundle

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION, ANSWER = {"role": "user", "content": "sky?"}, {"role": "assistant", "content": "blue"}
SECOND = {"role": "assistant", "content": "grey"}


def trained(row, model=None, **settings):
    model = model or renderer()
    found = sequence([row], model, **settings)
    return [model.decode(found["token_ids"][start:stop]) for start, stop in found["trained"]]


def pair_of(row, model):
    found = prepare([row], model, kind="preference")
    return json.loads(next(iter(found.bodies.values())))["records"][0]


def test_renders_prompt_and_completion_with_the_chat_template():
    """huggingface/trl #3468: prompt and completion were only joined, and the model did not learn."""
    whole = sequence([{"prompt": "sky?", "completion": "blue"}], renderer())
    assert whole == sequence([{"messages": [QUESTION, ANSWER]}], renderer())


def test_begins_each_answer_of_pair_without_another_beginning():
    """axolotl-ai-cloud/axolotl #1616: the beginning token was put before chosen and rejected, too."""
    bundle = family_bundle("llama")
    model = Renderer.from_bundle(bundle)
    for one in pair_of({"prompt": "sky?", "chosen": "blue", "rejected": "red"}, model):
        assert model.decode(one["token_ids"]).count(bundle.special_tokens["bos_token"]) == 1


def test_ends_each_answer_of_pair_once():
    """huggingface/trl #4908: a second end was appended to answers of conversations."""
    model = renderer()
    pair = {"chosen": [QUESTION, ANSWER], "rejected": [QUESTION, SECOND]}
    for one in pair_of(pair, model):
        ((start, stop),) = one["trained"]
        assert [token in model.stop_ids for token in one["token_ids"][start:stop]].count(True) == 1


def test_keeps_system_prompt_before_both_answers_of_pair():
    """modelscope/ms-swift #9611: the system prompt was dropped before the rejected answer."""
    model = renderer()
    talk = [SYSTEM, QUESTION]
    for row in (
        {"chosen": [*talk, ANSWER], "rejected": [*talk, SECOND]},
        {"conversations": [{"from": "human", "value": "sky?"}], "system": "Be brief."}
        | {"chosen": {"from": "gpt", "value": "blue"}, "rejected": {"from": "gpt", "value": "grey"}},
    ):
        assert all("Be brief." in model.decode(one["token_ids"]) for one in pair_of(row, model))


@pytest.mark.parametrize(
    "row",
    [
        {"chosen": [QUESTION, ANSWER], "rejected": [QUESTION, ANSWER]},
        {"chosen": [QUESTION, ANSWER], "rejected": [QUESTION]},
        {"prompt": [QUESTION], "chosen": [ANSWER], "rejected": [{"role": "user", "content": "grey"}]},
    ],
)
def test_refuses_pair_whose_answers_cannot_be_told_apart(row):
    """huggingface/trl #6960, #2385: equal conversations, or an answer by the user, gave broken pairs."""
    said = refused([row], renderer(), kind="preference")
    assert "task 0: " in said


def test_shows_system_turns_of_sharegpt():
    """NVIDIA-NeMo/Automodel #3143; lm-sys/FastChat #2176: system turns were dropped without a word."""
    turns = [("system", "Be brief."), ("human", "sky?"), ("gpt", "blue")]
    row = {"conversations": [{"from": who, "value": said} for who, said in turns]}
    assert sequence([row], renderer()) == sequence([{"messages": [SYSTEM, QUESTION, ANSWER]}], renderer())


def test_trains_every_answer_or_the_last_and_no_question():
    """zai-org/GLM-4 #803; hiyouga/LlamaFactory #4777: only the last answer, or questions, were trained."""
    talk = {"messages": [QUESTION, ANSWER, QUESTION, SECOND]}
    assert trained(talk) == ["blue<|im_end|>", "grey<|im_end|>"]
    assert trained(talk, answers="last") == ["grey<|im_end|>"]


def test_leaves_answers_of_weight_0_untrained():
    """hiyouga/LlamaFactory #9630; verl-project/verl #5472: answers that are context only were trained."""
    talk = [QUESTION, {**ANSWER, "weight": 0}, QUESTION, {**SECOND, "weight": 1}]
    assert trained({"messages": talk}) == ["grey<|im_end|>"]
    said = refused([{"messages": talk[:2]}], renderer())
    assert "task 0: messages: " in said


@pytest.mark.parametrize("given", [{}, {"input": ""}, {"input": None}])
def test_reads_alpaca_without_input(given):
    """hiyouga/LlamaFactory #7343: a missing or null input ended the run."""
    row = {"instruction": "sky?", "output": "blue", **given}
    assert sequence([row], renderer()) == sequence([{"messages": [QUESTION, ANSWER]}], renderer())


@pytest.mark.parametrize(
    "row", [{"instruction": None, "output": "blue"}, {"instruction": "a", "output": None}]
)
def test_never_trains_the_word_none(row):
    """starjob42/Starjob #2: null instructions were trained as "None"."""
    said = refused([{"instruction": "a", "output": "b"}, row], renderer())
    assert "task 1: " in said


def test_refuses_answer_that_is_an_object_by_its_row():
    """hiyouga/LlamaFactory #4249: rows with an object as output were dropped with a warning."""
    said = refused([{"instruction": "a", "output": {"b": None, "c": 1}}], renderer())
    assert "task 0: completion: " in said


def test_refuses_dataset_without_rows(tmp_path):
    """OpenRLHF/OpenRLHF #581; bespokelabsai/curator #392: empty data failed somewhere later."""
    for text in ("", "[]", "\n\n"):
        (tmp_path / "rows").write_text(text)
        said = refused(tmp_path / "rows", renderer())
        assert "rows: " in said


def test_cuts_no_row_so_that_nothing_is_left_to_train():
    """huggingface/trl #6025: rows cut to the context had no trained token left, and the loss was 0."""
    long = {"prompt": "x " * 2000, "completion": "y"}
    found = prepare([long, {"prompt": "a", "completion": "b"}], renderer(), kind="sft", on_overlong="drop")
    assert (found.records, found.dropped) == (1, 1)
    said = refused([long], renderer())
    assert "task 0: " in said


def test_shuffles_each_epoch_in_its_own_order():
    """EleutherAI/bergson #352; ant-research/EasyTemporalPointProcess #54: all epochs had one order."""
    spec = parse_spec({"kind": "sft", "data": "0" * 64, "steps": 3, "batch_size": 20})
    orders = [batch_numbers(spec, 20, step) for step in (1, 2, 3)]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(20)) for order in orders)
    again = [batch_numbers(spec, 20, step) for step in (1, 2, 3)]
    assert again == orders


def test_reads_function_calls_of_sharegpt():
    """hiyouga/LlamaFactory #5866: which turns of a conversation with function_call are trained."""
    from_others = renderer(
        "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    call = '{"name": "look", "arguments": {"at": "sky"}}'
    turns = [("human", "sky?"), ("function_call", call), ("observation", "blue"), ("gpt", "Blue.")]
    row = {"conversations": [{"from": who, "value": said} for who, said in turns]}
    assert trained(row, from_others) == [f"<call>{call}</call><|im_end|>", "Blue.<|im_end|>"]
    bad = {"conversations": [{"from": "human", "value": "?"}, {"from": "function_call", "value": "{"}]}
    said = refused([bad], from_others)
    assert "conversations[1]" in said
