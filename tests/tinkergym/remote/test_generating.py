import json
from datetime import date

import pytest

from tinkergym.errors import InvalidRequestError, TinkerGymError

ROWS = [{"id": f"q{number}", "prompt": f"say {number}"} for number in range(30)]


@pytest.fixture
def policy(start_service, connect):
    start_service(lambda prompt: f"heard {prompt[-30:]}", context_length=200)
    return connect().policy("nano")


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file


def lines_in(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def seeds(service):
    """The seeds of each prompt, in the order of the samples."""
    found = {}
    for request in sorted(
        (one for batch in service.sampled for one in batch), key=lambda one: one.request_id
    ):
        found.setdefault(tuple(request.prompt_ids), set()).add(request.seed)
    return found


def test_writes_a_line_per_completion_in_order_of_the_rows(policy, data, tmp_path):
    out = tmp_path / "new" / "answers.jsonl"
    done = policy.generate(data, out, n=2, keep=["id"], token_ids=True, logprobs=True, max_tokens=9)
    lines = lines_in(out)
    assert [(line["row"], line["sample"], line["id"]) for line in lines] == [
        (row, sample, f"q{row}") for row in range(30) for sample in range(2)
    ]
    assert {line["finish_reason"] for line in lines} == {"length"}
    assert {len(line["token_ids"]) for line in lines} == {9} == {len(line["logprobs"]) for line in lines}
    assert (done.completions, done.errors, done.continued_from) == (60, 0, 0)
    assert done.completion_tokens == 540 == sum(line["completion_tokens"] for line in lines)
    assert done.prompt_tokens == sum(line["prompt_tokens"] for line in lines)


@pytest.mark.parametrize("kept", [0.0, 0.31, 0.5, 0.98, 1.0])
def test_ends_with_the_same_bytes_wherever_it_was_stopped(policy, data, tmp_path, kept):
    out = tmp_path / "answers.jsonl"
    policy.generate(data, out, n=3, keep=["id"])
    whole = out.read_bytes()
    cut = int(kept * len(whole))
    out.write_bytes(whole[:cut])
    done = policy.generate(data, out, n=3, keep=["id"], resume=True, in_flight=5)
    assert out.read_bytes() == whole
    assert (done.continued_from, done.completions) == (whole[:cut].count(b"\n"), 90)
    assert policy.generate(data, out, n=3, keep=["id"], resume=True).continued_from == 90


def test_draws_the_same_seeds_at_any_concurrency(start_service, connect, data, tmp_path):
    drawn = []
    for in_flight in (1, 512):
        service = start_service()
        policy = connect().policy("nano")
        policy.generate(data, tmp_path / f"{in_flight}.jsonl", n=2, seed=4, keep=["id"], in_flight=in_flight)
        drawn.append(seeds(service))
    assert drawn[0] == drawn[1]
    assert {len(own) for own in drawn[0].values()} == {2}


def test_writes_errors_of_single_rows_as_lines(policy, tmp_path):
    out = tmp_path / "answers.jsonl"
    rows = [{"prompt": "a"}, {"prompt": "long " * 200}, {"prompt": 7}, {"prompt": "b"}]
    done = policy.generate(rows, out, n=2)
    lines = lines_in(out)
    assert [line["row"] for line in lines if "error" in line] == [1, 1, 2, 2]
    assert {line["text"] for line in lines if "error" in line} == {None}
    assert (done.errors, done.completions) == (4, 8)


def test_refuses_data_of_which_no_row_can_be_read(policy, tmp_path):
    for rows in ([{"promt": "a"}] * 3, [{"prompt": "a", "id": 1}] * 3):
        with pytest.raises(InvalidRequestError) as caught:
            policy.generate(rows, tmp_path / "out.jsonl")
        assert caught.value.field == "data"
    with pytest.raises(InvalidRequestError) as caught:
        policy.generate([{"prompt": "a"}], tmp_path / "out.jsonl", keep=["id"])
    assert caught.value.field == "keep"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("field", "settings"),
    [("n", {"n": 0}), ("n", {"n": True}), ("in_flight", {"in_flight": 0}), ("keep", {"keep": ["text"]})],
)
def test_refuses_settings_out_of_range(policy, tmp_path, field, settings):
    with pytest.raises(InvalidRequestError) as caught:
        policy.generate([{"prompt": "a"}], tmp_path / "out.jsonl", **settings)
    assert caught.value.field == field
    assert list(tmp_path.iterdir()) == []


def test_goes_on_after_a_gateway_that_dropped_requests(start_service, connect, data, tmp_path):
    service = start_service()
    policy, out = connect().policy("nano"), tmp_path / "answers.jsonl"
    for status in (None, 503, None, 429):
        service.break_next("POST /v1/sample", status=status)
    assert policy.generate(data, out, keep=["id"], in_flight=8).completions == 30
    assert [line["row"] for line in lines_in(out)] == list(range(30))


def test_keeps_what_is_done_when_the_service_refuses(start_service, connect, data, tmp_path):
    service = start_service()
    policy, out = connect().policy("nano"), tmp_path / "answers.jsonl"
    whole = tmp_path / "whole.jsonl"
    policy.generate(data, whole, keep=["id"])
    service.sampled.clear()

    def revoke(call):
        if call == "POST /v1/sample" and len(service.sampled) > 3:
            service.break_next("POST /v1/sample", status=500)

    service.called = revoke
    with pytest.raises(TinkerGymError):
        policy.generate(data, out, keep=["id"], in_flight=4)
    assert whole.read_bytes().startswith(out.read_bytes())
    service.called = lambda call: None
    assert policy.generate(data, out, keep=["id"], in_flight=4, resume=True).continued_from > 0
    assert out.read_bytes() == whole.read_bytes()


DATED = (
    "{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
)


def test_writes_the_date_on_which_the_run_began(start_service, connect, data, tmp_path):
    service = start_service()
    out, about = tmp_path / "answers.jsonl", tmp_path / "answers.jsonl.run.json"
    dated = connect().policy("nano", chat_template=DATED)
    dated.generate(data, out, max_tokens=9, keep=["id"])
    whole, begun = out.read_bytes(), json.loads(about.read_text())
    assert begun["settings"]["template_date"] == date.today().isoformat()
    # As if it had begun on another day: the prompt that is missing has that day's date, too.
    begun["settings"]["template_date"] = "2001-02-03"
    about.write_text(json.dumps({"settings": begun["settings"]}))
    out.write_bytes(b"".join(whole.splitlines(keepends=True)[:29]))
    assert dated.generate(data, out, max_tokens=9, keep=["id"], resume=True).completions == 30
    (last,) = service.sampled[-1]
    assert dated.renderer.decode(last.prompt_ids).startswith("2001-02-03")
