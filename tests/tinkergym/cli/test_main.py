import re

import pytest

import tinkergym as tg
from tests.tinkergym.test_import import loaded_after
from tinkergym.cli import main


@pytest.mark.parametrize(
    "command",
    [[], *[[name] for name in ("serve", "train", "jobs", "play", "envs", "keys")], ["jobs", "attach"]],
)
def test_explains_every_command(run, command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    # An explanation in words, not just a list of options.
    assert re.search(r"[A-Z][a-z]+ [^\n]{15,}\.", result.output)


def test_prints_the_version(run):
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"tinkergym {tg.__version__}\n")


@pytest.mark.parametrize("name", main.COMMANDS)
def test_says_in_the_listing_what_the_command_says(name):
    text = main.load(name).help.partition("\n\n")[0]
    assert " ".join(text.split()) == main.COMMANDS[name][1]


def test_imports_no_command_to_list_them():
    own = {name for name in loaded_after("import tinkergym.cli.main") if name.startswith("tinkergym.cli.")}
    assert own == {f"tinkergym.cli.{name}" for name in ("main", "console", "json_output")}
