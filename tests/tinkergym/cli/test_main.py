import re

import pytest

import tinkergym as tg


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
