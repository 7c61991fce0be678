import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "training.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_runs_the_pages_code_from_top_to_bottom(start_service, capsys):
    start_service(lambda prompt: "a1", environments=["board/TicTacToeVs-v0"])
    names = {"__name__": "page"}
    for block in BLOCKS:
        once = re.sub(r"(\bsteps=|\.step == )\d+", r"\g<1>1", block)
        exec(compile(once, str(PAGE), "exec"), names)
    names["client"].close()
    assert "type='step'" in capsys.readouterr().out
