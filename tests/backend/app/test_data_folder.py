import pytest

from backend.app.data_folder import claimed, log_file
from backend.config import ServiceConfig
from backend.errors import SERVICE_LOG, StartError


def test_what_errors_call_the_services_log_is_where_the_scheduler_writes_it(tmp_path):
    config = ServiceConfig(data_dir=tmp_path)
    config.log_dir.mkdir()
    there = log_file(config, "scheduler").relative_to(config.data_dir)
    assert SERVICE_LOG.startswith(f"{there} ")


@pytest.mark.parametrize(
    ("second", "field"), [({"data_dir": "one"}, "data_dir"), ({"data_dir": "two"}, "database_url")]
)
def test_a_folder_and_a_database_belong_to_one_service_at_a_time(tmp_path, second, field):
    database = f"sqlite:///{tmp_path / 'shared.sqlite3'}"
    linked = tmp_path / "linked.sqlite3"
    linked.symlink_to(tmp_path / "shared.sqlite3")
    first = ServiceConfig(data_dir=tmp_path / "one", database_url=database)
    other = ServiceConfig(data_dir=tmp_path / second["data_dir"], database_url=f"sqlite:///{linked}")
    with claimed(first), pytest.raises(StartError) as error, claimed(other):
        pass
    assert error.value.field == field
    with claimed(other):
        pass


def test_no_service_starts_on_a_folder_that_other_users_can_write_to(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    with pytest.raises(StartError) as error, claimed(ServiceConfig(data_dir=tmp_path / "data")):
        pass
    assert error.value.field == "data_dir"
    assert f"chmod go-w {tmp_path / 'data'}" in error.value.hint
