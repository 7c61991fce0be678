import json

import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.events import JobState

ROWS = [{"prompt": f"{number}?", "completion": str(number)} for number in range(10)]
PAIRS = [{"prompt": f"{number}?", "chosen": "yes", "rejected": "no"} for number in range(10)]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return path


def sent_to(service):
    return [call for call in service.calls if call.startswith("PUT")]


def test_makes_job_on_data_of_a_file_sent_once(client, service, file):
    job = client.sft(file, batch_size=3, epochs=2)
    assert job.wait().state is JobState.COMPLETED
    assert (job.spec.kind, job.spec.steps, job.spec.batch_size) == ("sft", 7, 3)
    sent = sent_to(service)
    again = client.sft(tg.tasks.JsonlTasks(file), steps=4)
    assert (again.spec.data, again.spec.steps, again.spec.batch_size) == (job.spec.data, 4, 10)
    assert sent_to(service) == sent
    assert len(sent) == 1


def test_leaves_held_out_share_out_of_a_passs_count(client, file):
    job = client.sft(file, batch_size=2, held_out=0.4)
    assert job.spec.steps == 3


def test_blames_a_share_that_leaves_nothing(client, service):
    with pytest.raises(InvalidRequestError) as caught:
        client.sft(tg.tasks.SequenceTasks(ROWS[:2]), held_out=0.9)
    assert caught.value.field == "held_out"
    assert sent_to(service) == []


@pytest.mark.parametrize(("content", "said"), [("", "nothing to measure with"), (None, "cannot be read")])
def test_names_as_such_the_data_to_measure_with(client, file, tmp_path, content, said):
    if content is not None:
        (tmp_path / "eval.jsonl").write_text(content)
    with pytest.raises(InvalidRequestError, match=said) as caught:
        client.sft(file, eval_data=tmp_path / "eval.jsonl")
    assert caught.value.field == "eval_data"


def test_continues_upload_where_it_broke_off(client, service, file):
    service.break_next("PUT /v1/data", status=None)
    assert client.sft(file, steps=1).spec.data in {job.view.spec.data for job in [service.jobs.get("job-1")]}


def test_takes_any_of_the_losses_for_preferences(client):
    job = client.preference(tg.tasks.SequenceTasks(PAIRS), steps=2, loss=tg.losses.SimPO(gamma=0.5))
    assert (job.spec.kind, job.spec.loss.name, job.spec.loss.gamma) == ("preference", "simpo", 0.5)
    assert client.preference(tg.tasks.SequenceTasks(PAIRS), steps=2).spec.loss == tg.losses.DPO()


@pytest.mark.parametrize(
    ("settings", "field", "text"),
    [
        ({"steps": 2, "epochs": 1}, "epochs", "give one of them"),
        ({"epochs": 0}, "epochs", "above 0"),
        ({"epochs": True}, "epochs", "above 0, not True"),
        ({"batch_size": "3"}, "batch_size", "must be a number, not '3'"),
        ({"on_overlong": "cut"}, "on_overlong", "'refuse' or 'drop'"),
        ({"answers": "first"}, "answers", "'all' or 'last'"),
        ({"learning_rat": 1}, "learning_rat", "did you mean learning_rate"),
        ({"epoch": 3}, "epoch", "did you mean epochs?"),
        ({"num_train_epochs": 3}, "num_train_epochs", "did you mean epochs?"),
        ({"overlong": "drop"}, "overlong", "did you mean on_overlong?"),
        ({"answer": "last"}, "answer", "did you mean answers?"),
        ({"step": 3}, "step", "did you mean steps?"),
        ({"eval_dataset": "x"}, "eval_dataset", "did you mean eval_data?"),
        ({"batch_size": 0}, "batch_size", "greater than"),
        ({"adapter": {"kind": "lorra"}}, "adapter.kind", "did you mean 'lora'"),
    ],
)
def test_rejects_wrong_setting_before_anything_is_read_or_sent(client, service, settings, field, text):
    with pytest.raises(InvalidRequestError) as caught:
        client.sft("no-such-file.jsonl", **settings)
    assert caught.value.field == field
    assert text in str(caught.value)
    assert sent_to(service) == []


def test_hides_conversation_argument_from_preference_hints(client):
    with pytest.raises(InvalidRequestError) as caught:
        client.preference("no-such-file.jsonl", epoch=3)
    assert caught.value.field == "epoch"
    with pytest.raises(InvalidRequestError) as caught:
        client.preference("no-such-file.jsonl", answer="last")
    assert caught.value.field == "answer"


def test_rejects_bad_row_before_anything_is_sent(client, service, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + json.dumps({"prompt": "x"}))
    with pytest.raises(InvalidRequestError) as caught:
        client.sft(path)
    assert caught.value.field == "data"
    good = tmp_path / "good.jsonl"
    good.write_text(json.dumps(ROWS[0]))
    with pytest.raises(InvalidRequestError) as caught:
        client.sft(good, eval_data=path)
    assert caught.value.field == "eval_data"
    assert sent_to(service) == []


def test_teaches_student_by_a_job_or_a_model(client):
    class Echo(tg.SingleTurnEnv):
        def ask(self, options):
            return "Say ok."

        def score(self, answer):
            return float(answer == "ok")

    job = client.distill(Echo, teacher="nano", steps=1, episodes_per_step=2)
    job.wait()
    assert (job.spec.kind, job.spec.teacher, job.spec.rollout) == ("distillation", "nano", "client")


def test_counts_aloud_rows_that_were_left_out(client, tmp_path, caplog, said_by):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, [*ROWS, {"prompt": "x" * 3000, "completion": "y"}])))
    client.sft(path, on_overlong="drop", steps=1)
    (said,) = said_by("tinkergym.remote.dataset_upload")
    assert said.startswith("data: dropped 1 of 11 rows")
    caplog.clear()
    client.sft(tg.tasks.SequenceTasks(ROWS), on_overlong="drop", steps=1)
    assert not said_by("tinkergym.remote.dataset_upload")
