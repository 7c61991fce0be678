import os
import stat
import subprocess
import sys

import pytest

from backend.app.data_folder import claimed, log_file
from backend.config import ServiceConfig
from backend.errors import SERVICE_LOG, ConfigError


def test_writes_services_log_where_the_scheduler_writes_it(tmp_path):
    config = ServiceConfig(data_dir=tmp_path)
    config.log_dir.mkdir()
    there = log_file(config, "scheduler").relative_to(config.data_dir)
    assert SERVICE_LOG.startswith(f"{there} ")


@pytest.mark.parametrize(
    ("second", "field"), [({"data_dir": "one"}, "data_dir"), ({"data_dir": "two"}, "database_url")]
)
def test_gives_a_folder_and_database_to_one_service_at_once(tmp_path, second, field):
    database = f"sqlite:///{tmp_path / 'shared.sqlite3'}"
    linked = tmp_path / "linked.sqlite3"
    linked.symlink_to(tmp_path / "shared.sqlite3")
    first = ServiceConfig(data_dir=tmp_path / "one", database_url=database)
    other = ServiceConfig(data_dir=tmp_path / second["data_dir"], database_url=f"sqlite:///{linked}")
    with claimed(first), pytest.raises(ConfigError) as error, claimed(other):
        pass
    assert error.value.field == field
    with claimed(other):
        pass


def test_lets_gateways_share_folder_of_a_running_service(tmp_path):
    config = ServiceConfig(data_dir=tmp_path / "data")
    with claimed(config), claimed(config, schedules=False), claimed(config, schedules=False):
        assert config.data_dir.is_dir()


def test_rejects_a_folder_that_other_users_can_write_to(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    with pytest.raises(ConfigError) as error, claimed(ServiceConfig(data_dir=tmp_path / "data")):
        pass
    assert error.value.field == "data_dir"


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_opens_what_is_created_to_this_user_only(tmp_path):
    before = os.umask(0o022)
    try:
        config = ServiceConfig(data_dir=tmp_path / "below" / "data")
        with claimed(config):
            config.images.put("a/b/c", b"picture")
            with config.uploads.filling("d/e") as folder:
                folder.mkdir()
                (folder / "f").touch()
            subprocess.run([sys.executable, "-c", f"open({str(config.data_dir / 'g')!r}, 'w')"], check=True)
        kinds = {(path.is_dir(), mode_of(path)) for path in (tmp_path / "below").rglob("*")}
        assert kinds == {(True, 0o700), (False, 0o600)}
        assert os.umask(0o022) == 0o022  # The caller has its own again.
    finally:
        os.umask(before)


@pytest.mark.parametrize("names", [[], ["serve.lock", "notes"], ["tinkergym.sqlite3"]])
def test_closes_its_folder_to_others(tmp_path, names):
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o755)
    for name in names:
        (folder / name).touch()
    with claimed(ServiceConfig(data_dir=folder)):
        assert mode_of(folder) == 0o700


def test_refuses_an_open_folder_of_something_else(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").touch()
    (tmp_path / "home").chmod(0o755)
    with pytest.raises(ConfigError) as error, claimed(ServiceConfig(data_dir=tmp_path / "home")):
        pass
    assert f"chmod go-rwx {tmp_path / 'home'}" in error.value.hint
    assert mode_of(tmp_path / "home") == 0o755


def test_leaves_no_folder_for_sockets_behind(tmp_path):
    config = ServiceConfig(data_dir=tmp_path / "data")
    with claimed(config):
        assert config.run_dir.exists()
        with pytest.raises(ConfigError), claimed(config):
            pass
        assert config.run_dir.exists()
    assert not config.run_dir.exists()
