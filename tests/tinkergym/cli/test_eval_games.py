import json

import pytest

KUHN = "tabletop/KuhnPoker-v0"


def test_the_exploitability_of_random_play_needs_no_service(tg_run, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "kuhn.png"
    run = tg_run("eval", KUHN, "--exploitability", "random", "--json", "--png", picture)
    assert run.exit_code == 0
    (found,) = json.loads(run.stdout)["measured"]
    assert found["exploitability"] == pytest.approx(11 / 24)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "0.458" in tg_run("eval", KUHN, "--exploitability", "random").output


def test_three_players_meet_in_a_game_for_three(tg_run):
    run = tg_run(
        *("eval", "tabletop/LiarsDice-v0", "--crossplay", "random,cautious", "--others", "random"),
        *("--pairs", 2, "--json"),
    )
    assert run.exit_code == 0
    found = json.loads(run.stdout)["crossplay"]
    assert found["others"] == ["random"]
    assert {cell["wins"] + cell["draws"] + cell["losses"] for cell in found["cells"]} == {6}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--exploitability", "random", "--pairs", "7"], "--pairs"),
        (["--exploitability", "random", "--policy", "legal"], "--policy"),
        (["--exploitability", "random", "--crossplay", "random,honest"], "--crossplay"),
        (["--exploitability", ","], "--exploitability"),
        (["--crossplay", "random,honest", "--greedy"], "--greedy"),
        (["--crossplay", "random,honest", "--others", "honest"], "--others"),
        (["--greedy"], "--greedy"),
        (["--others", "random"], "--others"),
        (["--png", "x.png"], "--png"),
    ],
)
def test_what_does_not_apply_is_refused_by_name(tg_run, arguments, field):
    run = tg_run("eval", KUHN, *arguments)
    assert run.exit_code == 2
    assert field in run.output
