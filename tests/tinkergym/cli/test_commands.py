import re

BOARD = "board/TicTacToeVs-v0"


def test_says_how_to_start_a_service_without_one(run, monkeypatch, tmp_path):
    monkeypatch.delenv("TINKERGYM_URL", raising=False)
    monkeypatch.setenv("TINKERGYM_HOME", str(tmp_path))
    result = run("jobs")
    assert result.exit_code == 1
    assert "tinkergym serve" in result.output


def test_lists_installed_packs(run):
    assert re.search(rf"tinkergym-board [\s\S]*\n  {BOARD} ", run("envs").output)
