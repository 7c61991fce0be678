BOARD = "board/TicTacToeVs-v0"


def test_trains_on_written_data_and_shows_its_loss(run, service, tmp_path):
    rows, pairs = tmp_path / "rows.jsonl", tmp_path / "pairs.jsonl"
    rows.write_text('{"prompt": "1?", "completion": "one"}\n' * 4)
    pairs.write_text('{"prompt": "1?", "chosen": "one", "rejected": "two"}\n' * 4)
    result = run("sft", str(rows), "--epochs", "2", "--batch-size", "2", "--rank", "4", "--set", "seed=7")
    assert result.exit_code == 0, result.output
    assert "sft · nano · LoRA rank 4 · steps: 4 · records per step: 2" in result.output
    assert "done: step 4 of 4" in result.output
    spec = service.jobs.newest_first()[0].spec
    assert (spec.seed, spec.lr_schedule, spec.adapter.rank) == (7, "linear", 4)
    result = run("preference", str(pairs), "--steps", "2", "--loss", "ipo", "--set", "loss.beta=0.2")
    assert result.exit_code == 0, result.output
    spec = service.jobs.newest_first()[0].spec
    assert (spec.loss.name, spec.loss.beta) == ("ipo", 0.2)
    listed = run("jobs")
    assert "preference" in listed.output and "sft" in listed.output


def test_names_bad_data_by_line_field_and_reason(run, service, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1?", "completion": "one"}\n{"prompt": "1?"}\n')
    result = run("sft", str(rows))
    assert result.exit_code != 0
    assert "rows.jsonl, line 2: completion: missing" in result.output
    assert service.jobs.newest_first() == []


def test_teaches_student_from_the_command_line(run, service):
    result = run("distill", BOARD, "--teacher", "nano", "--steps", "2", "--episodes", "4")
    assert result.exit_code == 0, result.output
    spec = service.jobs.newest_first()[0].spec
    assert (spec.kind, spec.teacher, spec.episodes_per_step) == ("distillation", "nano", 4)


def test_drops_long_rows_by_the_option_the_refusal_names(run, service, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        f'{{"prompt": "{"x" * 3000}", "completion": "y"}}\n{{"prompt": "1?", "completion": "y"}}\n'
    )
    assert "on_overlong='drop'" in run("sft", str(rows)).output
    assert run("sft", str(rows), "--drop-overlong").exit_code == 0
