from __future__ import annotations

import shutil
from contextlib import closing

import pytest
from sqlalchemy import make_url

from backend.scheduler.cluster_host import namespace_of
from backend.store.store import Store


def namespace(url):
    with closing(Store.open(url)) as store:
        store.keys.ensure_tenant("local")
        return namespace_of(store)


@pytest.mark.service
def test_finds_actors_however_hosts_spell_the_database(postgres_url, postgres_server):
    postgres_server.execute("DROP ROLE IF EXISTS standby")
    postgres_server.execute(
        "CREATE ROLE standby LOGIN PASSWORD 'other' IN ROLE pg_read_all_data, pg_write_all_data"
    )
    spelled = make_url(postgres_url)
    other = spelled.set(username="standby", password="other").update_query_dict({"sslmode": "disable"})
    assert namespace(other.render_as_string(hide_password=False)) == namespace(postgres_url)


def test_tells_a_database_from_its_copy(tmp_path):
    file, copy, link = (tmp_path / name for name in ("store", "copy", "link"))
    link.symlink_to(file)
    original = namespace(f"sqlite:///{file}")
    shutil.copy(file, copy)
    assert namespace(f"sqlite:///{link}") == original
    assert namespace(f"sqlite:///{copy}") != original
