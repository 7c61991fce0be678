import re

import pytest

import tinkergym as tg


@pytest.mark.parametrize(
    "command",
    [[], *[[name] for name in ("serve", "train", "jobs", "play", "envs", "keys")], ["jobs", "attach"]],
)
def test_every_command_explains_itself(run, command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    # An explanation in words, not just a list of options.
    assert re.search(r"[A-Z][a-z]+ [^\n]{15,}\.", result.output)


def test_the_version_can_be_asked_for(run):
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"tinkergym {tg.__version__}\n")
