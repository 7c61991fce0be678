import os
import re
import runpy
import sys

import pytest


@pytest.fixture
def keys(tg_run, tmp_path, monkeypatch):
    """Run `tinkergym keys ...`, and the program of the service that it becomes, in this process."""
    monkeypatch.setenv("TINKERGYM_HOME", str(tmp_path))

    def become(_program, arguments):
        _, option, module, *rest = arguments
        assert option == "-m"
        monkeypatch.setattr(sys, "argv", [module, *rest])
        runpy.run_module(module, run_name="__main__")

    monkeypatch.setattr(os, "execv", become)
    return lambda *arguments: tg_run("keys", *arguments)


def test_makes_lists_and_revokes_keys_without_a_running_service(keys):
    made = keys("create", "laptop", "--tenant", "ada", "--requests-per-minute", "60")
    assert re.fullmatch(r"tg-\S{40,}\n", made.stdout)
    assert "TINKERGYM_URL" in made.stderr
    listed = keys("list", "--tenant", "ada").stdout
    assert re.search(r"key-\w+ +.* valid +ada +laptop +60 requests/min", listed)
    assert made.stdout.strip() not in listed
    assert keys("revoke", listed.split()[0]).exit_code == 0
    assert "revoked" in keys("list").stdout


def test_names_a_key_that_does_not_exist(keys):
    result = keys("revoke", "key-nope")
    assert (result.exit_code, "key-nope" in result.stderr, "Traceback" in result.stderr) == (2, True, False)


@pytest.mark.parametrize("limit", ["0", "-1", "many"])
def test_refuses_limits_that_are_no_numbers_of_tokens(keys, limit):
    refused = keys("create", "laptop", "--tokens-per-minute", limit)
    assert (refused.exit_code, "Traceback" in refused.stderr) == (2, False)
