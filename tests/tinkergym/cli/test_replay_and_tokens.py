import json
from pathlib import Path

import pytest

import backend
from benchmarks.template_families import shipped_template, template_bundle
from tinkergym.agent.renderer import Renderer
from tinkergym.cli.model_files import read_bundle
from tinkergym.evaluation.records import EpisodeRecord, RecordWriter, read_records
from tinkergym.testing.templates import FAMILIES, family_bundle

BOARD = "board/TicTacToeVs-v0"
NANO = Path(backend.__file__).parent / "models" / "nano"


@pytest.fixture
def played(tg_run, start_service, tmp_path):
    """A file of episodes with tokens, and a directory with their tokenizer."""
    service = start_service(lambda prompt: "b2", environments=[BOARD])
    file = tmp_path / "run.jsonl"
    result = tg_run("eval", BOARD, "--policy", "nano", "--tasks", 2, "--out", file)
    assert result.exit_code == 0, result.output
    return file, save(service.bundle, tmp_path / "model")


def save(bundle, folder):
    folder.mkdir()
    (folder / "tokenizer.json").write_text(bundle.tokenizer_json)
    (folder / "chat_template.jinja").write_text(bundle.chat_template)
    (folder / "tokenizer_config.json").write_text(json.dumps(bundle.special_tokens))
    return folder


def test_tokens_are_shown_as_they_were_under_the_words_of_their_kind(tg_run, played):
    file, model = played
    result = tg_run("replay", file, "--episode", 0, "--model", model)
    assert "environment:\n  <|im_start|>user\n  You are" in result.output
    assert "sampled:\n  b2<|im_end|>\n" in result.output
    assert "turn 0: reward +0, 3 tokens" in result.output
    assert "return -1, terminated" in result.output


def test_a_token_that_was_sampled_and_is_not_learned_from_is_masked(tg_run, played, tmp_path):
    file, model = played
    record = read_records(file).episodes[0]
    body = record.trajectory.model_dump()
    segment, turn = body["segments"][0], body["turns"][0]
    segment["loss_mask"][turn["start"]] = False
    segment["sampling_logprobs"][turn["start"]] = None
    with RecordWriter(tmp_path / "masked.jsonl", {}) as writer:
        writer.write(EpisodeRecord.model_validate({**record.model_dump(), "trajectory": body}))
    result = tg_run("replay", tmp_path / "masked.jsonl", "--model", model)
    assert "masked:\n  b\nsampled:\n  2<|im_end|>\n" in result.output


def test_logprobs_are_listed(tg_run, played):
    file, model = played
    with_text = tg_run("replay", file, "--logprobs", "--model", model).output
    assert "0.000 'b'" in with_text
    without = tg_run("replay", file, "--logprobs").output
    assert "ids of segment 0:" in without


def test_without_a_tokenizer_the_text_of_the_turns_is_shown(tg_run, played):
    result = tg_run("replay", played[0])
    assert "sampled:\n  b2\n" in result.output
    assert "episode 1:" in result.output


def test_what_a_policy_says_is_no_command_to_the_terminal(tg_run, tmp_path, monkeypatch):
    (tmp_path / "loud.py").write_text(
        "import tinkergym as tg\n"
        "class Env(tg.SingleTurnEnv):\n"
        "    def ask(self, options): return 'clear \\x1b[2J the screen'\n"
        "    def score(self, answer): return 1.0\n"
    )
    monkeypatch.chdir(tmp_path)
    tg_run("eval", "loud:Env", "--tasks", 1, "--out", "run.jsonl")
    output = tg_run("replay", "run.jsonl").output
    assert "clear \\x1b[2J the screen" in output
    assert "\x1b" not in output


def test_an_episode_that_is_not_there_is_refused(tg_run, played):
    result = tg_run("replay", played[0], "--episode", 9)
    assert (result.exit_code, "0 to 1" in result.output) == (2, True)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_comes_out_exact(tg_run, tmp_path, family):
    result = tg_run("tokens", save(family_bundle(family), tmp_path / family), "--json")
    found = json.loads(result.output)
    assert (result.exit_code, found["exact"]) == (0, True)
    assert found["prefix_preserving"] is (family in ("llama", "gemma"))
    assert found["rewrites_history"] is (family == "mistral")
    assert found["conversations"]["plain"]["outcome"] == "same"
    assert FAMILIES[family].stop in found["stop_ids"].values()


@pytest.mark.parametrize(
    ("name", "stops", "rewrites"),
    [
        ("gptoss", {"<eos>", "<|return|>", "<|call|>"}, True),
        ("glm4moe", {"<eos>", "<|user|>", "<|observation|>"}, False),
        ("phi3", {"<eos>", "<|end|>"}, False),
    ],
)
def test_stop_tokens_are_read_off_the_template_and_segments_are_told(tg_run, tmp_path, name, stops, rewrites):
    source = shipped_template(name)
    if source is None:
        pytest.skip("trl, which ships these templates, is not installed")
    result = tg_run("tokens", save(template_bundle(name, source), tmp_path / name), "--json")
    found = json.loads(result.output)
    assert (result.exit_code, found["exact"], found["rewrites_history"]) == (0, True, rewrites)
    assert set(found["stop_ids"].values()) == stops
    assert found["conversations"]["plain"]["segments"] == (3 if rewrites else 1)


def test_the_model_that_comes_along_is_exact(tg_run):
    result = tg_run("tokens", NANO)
    assert result.exit_code == 0
    assert "an answer ends with  <|im_end|> (2)" in result.output
    assert "no difference outside the policy's answers" in result.output


def test_a_model_of_the_service_is_found_by_its_name(tg_run, start_service):
    start_service()
    assert tg_run("tokens", "nano").exit_code == 0


def test_a_tokenizer_that_writes_turns_differently_is_caught(tg_run, tmp_path):
    folder = save(family_bundle("gemma"), tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    # As SentencePiece models do: whatever is tokenised begins with a space, so parts are not like the whole.
    tokenizer["normalizer"] = {"type": "Prepend", "prepend": " "}
    for token in tokenizer["added_tokens"]:
        token["normalized"] = True
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    result = tg_run("tokens", folder)
    assert result.exit_code == 1
    assert "different plain" in result.output
    assert "the tokens differ outside the policy's answers" in result.output


@pytest.mark.parametrize(
    ("file", "message"),
    [("tokenizer.json", "has no tokenizer.json"), ("chat_template.jinja", "has no chat template")],
)
def test_a_directory_that_lacks_a_file_is_refused(tg_run, tmp_path, file, message):
    folder = save(family_bundle("llama"), tmp_path / "model")
    (folder / file).unlink()
    result = tg_run("tokens", folder)
    assert (result.exit_code, message in result.output) == (2, True)


def test_a_name_that_nobody_knows_is_refused(tg_run, monkeypatch, tmp_path):
    monkeypatch.delenv("TINKERGYM_URL", raising=False)
    monkeypatch.setenv("TINKERGYM_HOME", str(tmp_path))
    result = tg_run("tokens", "nobodys-model")
    assert result.exit_code in (1, 2)
    assert "tinkergym serve" in result.output


def test_templates_without_specials_of_their_own_are_read_as_the_directory_says():
    bundle = read_bundle(NANO)
    assert Renderer.from_bundle(bundle).stop_ids == bundle.stop_ids == [2]


def test_a_person_sees_the_models_own_text(tg_run):
    result = tg_run("play", BOARD, "--raw", NANO, "--env-set", "instructions=true", typed="zz\n")
    assert "prompt\n<|im_start|>system\n3 in a row wins." in result.output
    assert "<|im_end|>\n<|im_start|>assistant\n" in result.output


def test_a_person_sees_the_environments_system_prompt_and_may_answer_in_several_lines(tg_run):
    result = tg_run("play", BOARD, "--env-set", "instructions=true", typed="z\\\nz\n")
    assert "system\n3 in a row wins." in result.output
    assert r"'z\nz' is no cell" in result.output
