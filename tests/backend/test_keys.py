from backend.config import load_config
from backend.keys import main
from backend.store.store import Store


def test_a_key_is_made_listed_and_revoked_from_the_command_line(tmp_path, capsys):
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


def test_a_mistake_is_one_sentence(tmp_path, capsys):
    assert main(["--set", f"data_dir={tmp_path}", "revoke", "key-never"]) == 2
    assert capsys.readouterr().err == "tinkergym keys: there is no key key-never\n"
