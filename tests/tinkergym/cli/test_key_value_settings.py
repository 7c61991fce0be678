import pytest

BOARD = "board/TicTacToeVs-v0"


def test_accepts_an_option_by_set_too_but_not_twice(run, service):
    result = run("train", BOARD, "--steps", "1", "--set", "rollout=server", "--set", "env_kwargs.size=5")
    assert result.exit_code == 0, result.output
    spec = service.jobs.newest_first()[0].spec
    assert (spec.rollout, spec.environment.kwargs) == ("server", {"size": 5})
    result = run("train", BOARD, "--steps", "1", "--rollout", "client", "--set", "rollout=server")
    assert result.exit_code == 2
    assert "error: --set: rollout is given twice" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "greater than or equal to 1, got 0"),
        (["--steps", "1", "--set", "sede=3"], "error: sede: unknown setting\n  did you mean seed?"),
        (["--steps", "1", "--group-size", "1"], "error: algorithm.group_size: must be at least 2"),
        (["--steps", "1", "--set", "seed"], "error: --set: 'seed' is not a valid setting"),
    ],
)
def test_exits_with_2_and_one_sentence_on_wrong_setting(run, service, arguments, message):
    result = run("train", BOARD, *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_reaches_by_set_what_no_option_was_given_for(run, service):
    settings = ["--set", "adapter.rank=4", "--set", "model=nano", "--set", "algorithm.group_size=2"]
    assert run("train", BOARD, "--steps", "1", "--groups", "2", *settings).exit_code == 0
    spec = service.jobs.newest_first()[0].spec
    assert (spec.adapter.rank, spec.algorithm.group_size, spec.algorithm.groups_per_step) == (4, 2, 2)


@pytest.mark.parametrize("order", [1, -1])
def test_names_a_variant_by_the_section_in_set(run, service, order):
    pairs = ["algorithm=rloo", "algorithm.groups_per_step=2", "adapter=full"][::order]
    settings = [word for pair in pairs for word in ("--set", pair)]
    assert run("train", BOARD, "--steps", "1", *settings).exit_code == 0
    spec = service.jobs.newest_first()[0].spec
    assert (spec.algorithm.name, spec.algorithm.groups_per_step, spec.adapter.kind) == ("rloo", 2, "full")


def test_reaches_by_set_a_section_without_options(run, service):
    settings = ["--set", "algorithm.name=rloo", "--set", "algorithm.groups_per_step=2"]
    assert run("train", BOARD, "--steps", "1", *settings).exit_code == 0
    assert service.jobs.newest_first()[0].spec.algorithm.name == "rloo"


@pytest.mark.parametrize(
    ("command", "pair", "field"),
    [
        ("sft", "algorithm.group_size=1", "algorithm"),
        ("train", "loss.beta=1", "loss"),
        ("train", "kind=sft", "kind"),
        ("train", ".".join("a" * 2000) + "=1", "--set"),
        ("train", "steps=" + "[" * 5000, "--set"),
        ("train", 'system_prompt="\\ud800"', "system_prompt"),
    ],
)
def test_refuses_hostile_settings_by_name(run, service, tmp_path, command, pair, field):
    data = tmp_path / "chats.jsonl"
    data.write_text('{"prompt": "a", "completion": "b"}\n', encoding="utf-8")
    result = run(command, BOARD if command == "train" else str(data), "--steps", "2", "--set", pair)
    assert result.exit_code == 2
    assert result.output.startswith(f"error: {field}")
