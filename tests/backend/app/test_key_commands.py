import json

from backend.app.key_commands import main
from backend.config import load_config
from backend.store.store import Store


def test_makes_lists_and_revokes_a_key_from_the_command_line(tmp_path, capsys):
    setting = f"data_dir={tmp_path}"
    assert main(["--set", setting, "create", "ada", "--name", "laptop"]) == 0
    made = capsys.readouterr()
    key = made.out.strip()
    assert "TINKERGYM_API_KEY" in made.err and key not in made.err
    store = Store.open(load_config(None, [setting]).store_url)
    assert store.keys.tenant_of(key) == "ada"
    assert main(["--set", setting, "list", "ada"]) == 0
    shown = capsys.readouterr().out
    assert "valid" in shown
    assert "laptop" in shown
    assert key not in shown
    assert main(["--set", setting, "create", "bob"]) == 0
    capsys.readouterr()
    assert main(["--set", setting, "list"]) == 0
    both = capsys.readouterr().out
    assert "ada" in both
    assert "bob" in both
    assert main(["--set", setting, "revoke", shown.split()[0]]) == 0
    assert store.keys.tenant_of(key) is None
    main(["--set", setting, "list", "ada"])
    assert "revoked" in capsys.readouterr().out
    store.close()


def test_reports_a_mistake_in_one_sentence(tmp_path, capsys):
    assert main(["--set", f"data_dir={tmp_path}", "revoke", "key-never"]) == 2
    assert capsys.readouterr().err == "tinkergym keys: there is no key key-never\n"


def test_prints_keys_as_json_for_a_program(tmp_path, capsys):
    def run(*arguments, code=0):
        assert main(["--json", "--set", f"data_dir={tmp_path}", *arguments]) == code
        return json.loads(capsys.readouterr().out)  # which refuses two documents

    made = run("create", "ada", "--name", "laptop")
    rates = {"requests_per_minute", "tokens_per_minute"}
    assert made.keys() == {"key", "key_id", "tenant", "name", "read_only"} | rates
    (listed,) = run("list")["keys"]
    assert (listed["key_id"], listed["name"], listed["revoked_at"]) == (made["key_id"], "laptop", None)
    assert made["key"] not in json.dumps(listed)
    assert run("revoke", made["key_id"]) == {"key_id": made["key_id"], "revoked": True}
    assert run("list", "ada")["keys"][0]["revoked_at"] > 0
    assert run("revoke", "key-never", code=2)["error"]["type"] == "NotFoundError"


def test_shows_id_but_not_the_key_when_revoked_by_key(tmp_path, capsys):
    setting = f"data_dir={tmp_path}"
    assert main(["--set", setting, "--json", "create", "ada"]) == 0
    made = json.loads(capsys.readouterr().out)
    for key, told in ((made["key"], made["key_id"]), (f"x{made['key']}", "tinkergym keys list")):
        assert main(["--set", setting, "--json", "revoke", key]) == 2
        printed = capsys.readouterr()
        assert told in printed.out
        assert made["key"] not in printed.out + printed.err
