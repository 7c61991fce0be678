import json

from backend.app.migrate import main


def test_upgrades_the_database_that_the_settings_name(tmp_path, capsys):
    file = tmp_path / "store.db"
    assert main(["--set", f"database_url=sqlite:///{file}", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"schema"}
    assert file.exists()


def test_says_which_database_it_cannot_upgrade(capsys):
    assert main(["--set", "database_url=mysql://host/db", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["field"] == "database_url"
