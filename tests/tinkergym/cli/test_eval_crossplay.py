import json

import pytest

KUHN = "tabletop/KuhnPoker-v0"


def test_plays_three_players_in_a_game_for_three(tg_run):
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
        (["--crossplay", "random,honest", "--policy", "legal"], "--policy"),
        (["--crossplay", "random,honest", "--others", "honest"], "--others"),
        (["--crossplay", "random,honest", "--template-set", "a=1"], "--template-set"),
        (["--pairs", "7"], "--pairs"),
        (["--others", "random"], "--others"),
        (["--png", "x.png"], "--png"),
    ],
)
def test_rejects_by_name_what_does_not_apply(tg_run, arguments, field):
    run = tg_run("eval", KUHN, *arguments)
    assert run.exit_code == 2
    assert field in run.output
