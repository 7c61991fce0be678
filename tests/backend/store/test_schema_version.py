import sqlite3

import pytest

from backend.errors import ConfigError
from backend.store.store import Store


@pytest.mark.parametrize("version", [1, 999])
def test_rejects_database_of_another_schema_version_and_leaves_it_alone(store, url, tmp_path, version):
    store.close()
    with sqlite3.connect(tmp_path / "store.sqlite3") as connection:
        connection.execute("UPDATE schema_version SET version = ?", (version,))
    with pytest.raises(ConfigError) as caught:
        Store.open(url)
    assert caught.value.field == "database_url"
    with sqlite3.connect(tmp_path / "store.sqlite3") as connection:
        assert connection.execute("SELECT version FROM schema_version").fetchall() == [(version,)]
