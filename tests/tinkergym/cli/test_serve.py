"""Commands that become a program of the service."""

import os
import subprocess
import sys

import pytest


def tinkergym(*arguments: str, home) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "tinkergym.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TINKERGYM_HOME": str(home)},
    )


def test_says_in_one_sentence_that_services_setting_is_wrong(tmp_path):
    result = tinkergym("serve", "--set", "prot=1", home=tmp_path)
    assert result.returncode != 0
    assert "did you mean port?" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("option", "setting"),
    [("--port=0", "port=0"), ("--host=127.0.0.1", "host=0.0.0.0"), ("--data-dir=a", "data_dir=b")],
)
def test_rejects_a_service_setting_that_is_given_twice(tg_run, monkeypatch, option, setting):
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("the service began"))
    result = tg_run("serve", option, "--set", setting)
    name = setting.partition("=")[0]
    assert (result.exit_code, f"error: --set: {name} is given twice" in result.output) == (2, True)
