"""The command line's page shows what really happens, and every command explains itself."""

import re
import shlex
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "evaluation.md"


def test_repeats_on_page_what_the_commands_say(tg_run, start_service, tmp_path, monkeypatch):
    import backend

    monkeypatch.chdir(tmp_path)
    # Where the page names the model of the service; a directory of the same name needs none.
    (tmp_path / "nano").symlink_to(Path(backend.__file__).parent / "models" / "nano")
    shown = "".join(re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    commands = re.split(r"^\$ tinkergym ", shown, flags=re.MULTILINE)[1:]
    assert len(commands) >= 5
    for command in commands:
        line, output = command.split("\n", 1)
        said = tg_run(*shlex.split(line)).output
        assert [row.rstrip() for row in said.splitlines()] == [row.rstrip() for row in output.splitlines()]


@pytest.mark.parametrize("command", ["check", "eval", "compare", "replay", "tokens", "play", "export"])
def test_explains_every_command_with_an_example(tg_run, command):
    result = tg_run(command, "--help")
    assert result.exit_code == 0
    assert f"Example: tinkergym {command} " in result.output
    assert re.search(r"[A-Z][a-z]+ [^\n]{15,}\.", result.output)


def test_has_every_command_of_the_page(tg_run):
    named = set(re.findall(r"tinkergym (\w[\w-]+)", PAGE.read_text(encoding="utf-8")))
    listed = tg_run("--help").output
    assert all(re.search(rf"\b{name}\b", listed) for name in named - {"COMMAND"})
