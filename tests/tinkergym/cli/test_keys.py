import os
import re
import subprocess
import sys


def tinkergym(*arguments: str, home) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "tinkergym.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TINKERGYM_HOME": str(home)},
    )


def test_keys_are_made_listed_and_revoked_without_a_running_service(tmp_path):
    made = tinkergym("keys", "create", "laptop", "--tenant", "ada", home=tmp_path)
    assert re.fullmatch(r"tg-\S{40,}\n", made.stdout)
    assert "TINKERGYM_URL" in made.stderr
    listed = tinkergym("keys", "list", "--tenant", "ada", home=tmp_path).stdout
    assert re.search(r"key-\w+ +.* valid +ada +laptop", listed)
    assert made.stdout.strip() not in listed
    key_id = listed.split()[0]
    assert tinkergym("keys", "revoke", key_id, home=tmp_path).returncode == 0
    assert "revoked" in tinkergym("keys", "list", home=tmp_path).stdout


def test_a_key_that_is_not_there_is_one_sentence(tmp_path):
    result = tinkergym("keys", "revoke", "key-nope", home=tmp_path)
    assert result.returncode != 0
    assert "there is no key key-nope" in result.stderr
    assert "Traceback" not in result.stderr
