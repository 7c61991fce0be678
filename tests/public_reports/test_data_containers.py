"""Public reports about data files: what other tools lost between a file and the tokens."""

from __future__ import annotations

import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tinkergym as tg
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prepare import prepare
from tinkergym.errors import InvalidRequestError
from tinkergym.testing.bundles import family_bundle

SHOWS_CALLS = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHOWS_TOOLS = (
    "{%- for t in tools or [] %}<|im_start|>system\n{{ t | tojson }}<|im_end|>\n{% endfor %}" + SHOWS_CALLS
)
SHOWS_THOUGHTS = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n"
    "{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROW = json.dumps({"prompt": "Hi", "completion": "Yo"}).encode()


def renderer(template=None, **settings):
    bundle = family_bundle("qwen", **settings)
    return Renderer.from_bundle(bundle.model_copy(update={"chat_template": template or bundle.chat_template}))


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


def refused(source, model, **settings):
    with pytest.raises(InvalidRequestError) as caught:
        prepare(source, model, **{"kind": "sft"} | settings)
    return str(caught.value)


def sequence(source, model, **settings):
    found = prepare(source, model, **{"kind": "sft"} | settings)
    return json.loads(next(iter(found.bodies.values())))["records"][0][0]


@pytest.mark.parametrize("container", ["parquet", "datasets"])
def test_reads_null_keys_of_arrow_as_absent(tmp_path, container):
    """PrimeIntellect-ai/prime-rl #2988, #3494; modelscope/ms-swift #6467."""
    call = {"id": "c1", "type": "function", "function": {"name": "sky", "arguments": '{"city": "Lima"}'}}
    asked = [{"role": "user", "content": "Wet?"}, {"role": "assistant", "content": "Yes."}]
    called = [
        {"role": "user", "content": "And in Lima?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "sky", "content": "dry"},
        {"role": "assistant", "content": "No."},
    ]
    rows, model = [{"messages": asked}, {"messages": called}], renderer(SHOWS_CALLS)
    path = tmp_path / "rows"
    if container == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        datasets.disable_progress_bars()
        datasets.Dataset.from_list(rows).save_to_disk(str(path))
    assert prepare(path, model, kind="sft").bodies == prepare(rows, model, kind="sft").bodies


def test_shows_no_foreign_parameter_of_aligned_tool_schemas(tmp_path):
    """modelscope/ms-swift #10125, #10110."""
    tools = [
        tool("sky", city={"type": "string"}),
        tool("add", a={"type": "number", "default": None}, b={"type": "number", "enum": [1, None]}),
    ]
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    rows, model = [{"tools": tools, "messages": talk}], renderer(SHOWS_TOOLS, context_length=4096)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t")
    text = model.decode(sequence(tmp_path / "t", model)["token_ids"])
    assert '"properties": {"city": {"type": "string"}}' in text
    assert '"a": {"type": "number", "default": null}' in text
    assert '"enum": [1, null]' in text


def test_refuses_rows_that_are_already_formatted():
    """huggingface/autotrain-advanced #753; OpenRLHF/OpenRLHF #393; huggingface/trl #1400."""
    written = "<|im_start|>user\nName a fish.<|im_end|>\n<|im_start|>assistant\n"
    rows = {
        "text": {"text": f"{written}Cod<|im_end|>\n"},
        "prompt": {"prompt": written, "completion": "Cod"},
        "chosen": {"prompt": "A fish?", "chosen": f"{written}Cod", "rejected": "Cow"},
    }
    for field, row in rows.items():
        said = refused([row], renderer(), kind="preference" if field == "chosen" else "sft")
        assert f"task 0: {field}: " in said
        assert "messages" in said
    mentions = {"prompt": "What does <|im_end|> mean?", "completion": "The end."}
    assert sequence([mentions], renderer())["token_ids"].count(renderer().stop_ids[0]) == 3


def test_drops_or_refuses_absurdly_long_row(tmp_path):
    """verl-project/verl #4975, #6239."""
    rows = [{"prompt": "a b", "completion": "c"}, {"prompt": "q " * 530_000, "completion": "c"}]
    path = tmp_path / "long"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = prepare(path, renderer(), kind="sft", on_overlong="drop")
    assert (found.records, found.dropped) == (1, 1)
    said = refused(path, renderer())
    assert "line 2: " in said


def test_reads_whole_conversations_as_chosen_and_rejected():
    """hiyouga/LlamaFactory #3354; NVIDIA-NeMo/RL #1027."""

    def talk(answer):
        return [{"role": "user", "content": "A word for cold?"}, {"role": "assistant", "content": answer}]

    plain = {"prompt": "A word for cold?", "chosen": "Chilly.", "rejected": "Not warm."}
    pair = {"chosen": talk("Chilly."), "rejected": talk("Not warm.")}
    scored = {"score_chosen": 8.0, "score_rejected": 3.0, "prompt_id": "7", "messages": talk("Chilly.")}
    wanted = prepare([plain], renderer(), kind="preference").bodies
    prompts = ({}, {"prompt": "A word for cold?"}, {"prompt": talk("x")[:1]})
    for row in (
        *({**pair, **prompt} for prompt in prompts),
        {**pair, **scored, "prompt": "A word for cold?"},
    ):
        assert prepare([row], renderer(), kind="preference").bodies == wanted
    apart = {"chosen": talk("Chilly."), "rejected": [{"role": "user", "content": "Hot?"}, talk("x")[1]]}
    said = refused([apart], renderer(), kind="preference")
    assert "rejected: " in said


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "reasoning"])
def test_trains_thoughts_where_the_template_writes_them(key):
    """THUDM/slime #330; huggingface/trl #6361."""
    model = renderer(SHOWS_THOUGHTS)

    def trained(*answers, **settings):
        talk = [[{"role": "user", "content": "2+2?"}, {"role": "assistant", **one}] for one in answers]
        found = sequence([{"messages": [one for pair in talk for one in pair]}], model, **settings)
        return [model.decode(found["token_ids"][start:stop]) for start, stop in found["trained"]]

    thought = {"content": "4", key: "two and two"}
    whole = "<think>\ntwo and two\n</think>\n\n4<|im_end|>"
    assert trained(thought) == [whole]
    assert trained({"content": "4", key: None}) == ["4<|im_end|>"]
    assert trained(thought, {"content": "5"}) == [whole, "5<|im_end|>"]
    assert trained({**thought, "weight": 0}, thought) == [whole]
    misspelled = [{"role": "user", "content": "2+2?"}, {"role": "assistant", **thought, "wieght": 0}]
    refused([{"messages": misspelled}], model)
    said = refused(
        [{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", **thought}]}], renderer()
    )
    assert f"messages[1].{key}" in said


READ = {
    "byte order mark": (b"\xef\xbb\xbf" + ROW + b"\n", 1),
    "line ends of Windows": (ROW + b"\r\n" + ROW + b"\r\n", 2),
    "line separators in a text": ('{"prompt":"a\u2028b\u0085c","completion":"d\u2029e"}\n'.encode(), 1),
    "null character": (json.dumps({"prompt": "a\0b", "completion": "c"}).encode(), 1),
    "blank lines": (b"\n\n" + ROW + b"\n\n" + ROW, 2),
    "pretty-printed array": (json.dumps([json.loads(ROW)] * 2, indent=1).encode(), 2),
    "CSV": (b'prompt,completion\r\nHi,"Yo, ""you"""\r\n\r\nHi,"two\nlines"\r\n', 2),
}


@pytest.mark.parametrize(("raw", "count"), READ.values(), ids=READ)
def test_reads_odd_file(tmp_path, raw, count):
    """PrimeIntellect-ai/prime-rl #2942, the same kind."""
    path = tmp_path / "rows.txt"
    path.write_bytes(raw)
    assert prepare(path, renderer(), kind="sft").records == count


REFUSED = {
    "UTF-16": (json.dumps({"prompt": "Hi", "completion": "Yo"}).encode("utf-16"), "UTF-16"),
    "Latin-1": ('{"prompt":"Hi","completion":"café"}'.encode("latin-1"), "line 1: "),
    "number": (b'{"prompt":"Hi","completion":42}', "line 1: completion: "),
    "NaN": (b'{"prompt":"Hi","completion":"Yo","score":NaN}', "line 1: "),
    "NaN in an array": (b'[{"prompt":"Hi","completion":"Yo","score":NaN}]', "row 1: "),
    "broken array": (b'[{"prompt":"Hi"\n"completion":"Yo"}]', "line 2: "),
    "line ends of old Macs": (ROW + b"\r" + ROW + b"\r", "line 1: "),
    "gzip": (b"\x1f\x8b\x08\x00", "gzip"),
    "CSV in Latin-1": ("prompt,completion\nHi,café\n".encode("latin-1"), "line 1: "),
    "short line of CSV": (b"prompt,completion\nHi\n", "line 2: "),
}


@pytest.mark.parametrize(("raw", "where"), REFUSED.values(), ids=REFUSED)
def test_refuses_odd_file_by_line_and_cause(tmp_path, raw, where):
    """PrimeIntellect-ai/prime-rl #2942, the same kind."""
    path = tmp_path / "rows.txt"
    path.write_bytes(raw)
    said = refused(path, renderer())
    assert "rows.txt" in said
    assert where in said


def test_trains_end_of_answers_even_if_it_pads():
    """unslothai/unsloth #416; huggingface/trl #6357; mlabonne/llm-course #33."""
    for family in ("qwen", "llama", "mistral", "gemma"):
        model = Renderer.from_bundle(family_bundle(family))
        found = sequence(tg.tasks.SequenceTasks([json.loads(ROW)]), model)
        assert found["token_ids"][found["trained"][-1][1] - 1] in model.stop_ids
