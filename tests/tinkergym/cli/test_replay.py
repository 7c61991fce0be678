import json

import pytest

from tinkergym.evaluation.records import EpisodeRecord, RecordWriter, read_records

BOARD = "board/TicTacToeVs-v0"


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


def test_shows_tokens_unchanged_under_the_words_of_their_kind(tg_run, played):
    file, model = played
    result = tg_run("replay", file, "--episode", 0, "--model", model)
    assert "environment:\n  <|im_start|>user\n  You are" in result.output
    assert "sampled:\n  b2<|im_end|>\n" in result.output
    assert "turn 0: reward +0, 3 tokens" in result.output
    assert "return -1, terminated" in result.output


def test_masks_sampled_token_that_is_not_learned_from(tg_run, played, tmp_path):
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


def test_lists_logprobs(tg_run, played):
    file, model = played
    with_text = tg_run("replay", file, "--logprobs", "--model", model).output
    assert "0.000 'b'" in with_text
    without = tg_run("replay", file, "--logprobs").output
    assert "ids of segment 0:" in without


def test_shows_text_of_the_turns_without_a_tokenizer(tg_run, played):
    result = tg_run("replay", played[0])
    assert "sampled:\n  b2\n" in result.output
    assert "episode 1:" in result.output


def test_keeps_policys_words_from_commanding_the_terminal(tg_run, tmp_path, monkeypatch):
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


def test_rejects_episode_that_is_not_there(tg_run, played):
    result = tg_run("replay", played[0], "--episode", 9)
    assert (result.exit_code, "0 to 1" in result.output) == (2, True)
