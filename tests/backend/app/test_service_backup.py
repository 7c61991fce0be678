from __future__ import annotations

import json
from contextlib import closing

import pytest

from backend.app import service_backup
from backend.config import ServiceConfig
from backend.errors import ConfigError
from backend.store.blobs import new_checkpoint_key
from backend.store.database_copy import program_access
from backend.store.local_blobs import LocalBlobs
from backend.store.place import DEFAULT_FILE
from backend.store.store import Store
from tests.backend.store.blob_places import fill
from tinkergym.schema.events import CheckpointView
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec

SPEC = RLSpec(environment=EnvironmentRef(id="board/TicTacToeVs-v0"), steps=5)


class Service:
    """A data folder with one job, and what its worker does."""

    def __init__(self, config):
        self.config, folder = config, config.data_dir
        folder.mkdir(mode=0o700)
        self.store = Store.open(self.config.store_url)
        self.store.keys.ensure_tenant("ada")
        job_id = self.store.tenant("ada").create_job(SPEC, {}).job_id
        self.lease = self.store.service().acquire(job_id, "w", 30, now=0)
        (folder / "operator.key").write_text("secret")
        self.steps = 0

    def save(self):
        """Write the next checkpoint, and remove the one before."""
        self.steps += 1
        key = new_checkpoint_key(self.lease.job_id, "", self.steps, epoch=1)
        fill(self.config.job_files, key, weights=b"%d" % self.steps)
        view = CheckpointView(
            step=self.steps, policy_version=1, key=key, sha256="00", files={"manifest.json": 9, "weights": 1}
        )
        self.store.service().add_checkpoint(self.lease, view)
        if self.steps > 1:
            self.store.service().remove_checkpoint(self.lease, self.steps - 1)
            self.config.job_files.delete(new_checkpoint_key(self.lease.job_id, "", self.steps - 1, epoch=1))


class BusyTarget(LocalBlobs):
    """A backup during which the service goes on."""

    def __init__(self, root, meanwhile, *, times):
        super().__init__(root)
        self._meanwhile, self._left, self._is_part = meanwhile, [times], False

    def below(self, key):
        below = BusyTarget(self._path(key), self._meanwhile, times=0)
        below._left, below._is_part = self._left, True
        return below

    def put_file(self, key, path):
        super().put_file(key, path)
        self._let_go_on()

    def files(self, key=""):
        if self._is_part:  # The service's blobs are listed next.
            self._let_go_on()
        return super().files(key)

    def _let_go_on(self):
        if self._left[0]:
            self._left[0] -= 1
            self._meanwhile()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def config(request, tmp_path):
    """Return the settings of a service whose data folder has this name, with either database."""
    if request.param == "sqlite":
        yield lambda name, **more: ServiceConfig(data_dir=tmp_path / name, **more)
        return
    server, url = (request.getfixturevalue(f"postgres_{what}") for what in ("server", "url"))
    server.execute("CREATE DATABASE after")
    urls = {"before": url, "after": server.url("after")}
    yield lambda name, **more: ServiceConfig(data_dir=tmp_path / name, database_url=urls[name], **more)
    server.execute("DROP DATABASE after")


@pytest.fixture
def service(config):
    made = Service(config("before"))
    made.save()
    yield made
    made.store.close()


@pytest.fixture
def file_service(tmp_path):
    made = Service(ServiceConfig(data_dir=tmp_path / "before"))
    made.save()
    yield made
    made.store.close()


def settings(config):
    """Return the settings as a command gets them."""
    set_here = config.model_dump(mode="json", include={"data_dir", "database_url", "blobs"})
    return [part for name, value in set_here.items() if value for part in ("--set", f"{name}={value}")]


def checkpoints(config, job_id):
    """Return the steps of the checkpoints, with their weights."""
    with closing(Store.open(config.store_url)) as store:
        views = store.service().checkpoints(job_id)
    return {view.step: (config.job_files.local(view.key) / "weights").read_bytes() for view in views}


def test_restores_database_and_blobs_that_fit_together(service, config, tmp_path, capsys):
    service.save()
    target, after = str(tmp_path / "backup"), config("after", blobs=str(tmp_path / "elsewhere"))
    for _ in range(2):  # the second into the same place
        assert service_backup.main([*settings(service.config), "backup", target]) == 0
        service.save()
    capsys.readouterr()
    assert service_backup.main(["--json", *settings(after), "restore", target]) == 0
    assert json.loads(capsys.readouterr().out)["blobs"] == 2
    assert checkpoints(after, service.lease.job_id) == {3: b"3"}
    assert after.operator_key_file.read_text() == "secret"
    assert after.operator_key_file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("times", [4, 9])
def test_backs_up_service_that_goes_on_meanwhile(service, config, tmp_path, times):
    service_backup.back_up(service.config, BusyTarget(tmp_path / "backup", service.save, times=times))
    after = config("after")
    service_backup.restore(after, LocalBlobs(tmp_path / "backup"))
    ((step, weights),) = checkpoints(after, service.lease.job_id).items()
    assert weights == b"%d" % step


def test_restores_over_no_database_and_from_no_unfinished_backup(service, config, tmp_path):
    target = LocalBlobs(tmp_path / "backup")
    service_backup.back_up(service.config, target)
    with pytest.raises(ConfigError, check=lambda error: error.field == "database_url"):
        service_backup.restore(service.config, target)
    target.delete("backup.json")
    with pytest.raises(ConfigError, check=lambda error: error.field == "TARGET"):
        service_backup.back_up(service.config, target)
    after = config("after")
    with pytest.raises(ConfigError, check=lambda error: error.field == "SOURCE"):
        service_backup.restore(after, target)


def test_refuses_existing_databases_before_it_copies_anything(file_service, tmp_path):
    target = LocalBlobs(tmp_path / "backup")
    service_backup.back_up(file_service.config, target)
    after = tmp_path / "after"
    after.mkdir(mode=0o700)
    (after / f"{DEFAULT_FILE}-wal").touch()
    with pytest.raises(ConfigError, check=lambda error: error.field == "database_url"):
        service_backup.restore(ServiceConfig(data_dir=after), target)
    assert not (after / "operator.key").exists()
    assert ServiceConfig(data_dir=after).job_files.files() == []


def test_refuses_blob_store_of_another_service(file_service, tmp_path):
    target = LocalBlobs(tmp_path / "backup")
    service_backup.back_up(file_service.config, target)
    after = ServiceConfig(data_dir=tmp_path / "after", blobs=str(tmp_path / "bucket"))
    after.job_files.put("owner.json", b"{}")
    with pytest.raises(ConfigError, check=lambda error: error.field == "blobs"):
        service_backup.restore(after, target)
    assert [blob.key for blob in after.job_files.files()] == ["owner.json"]


def test_gives_passwords_to_programs_in_the_environment():
    plain, environment = program_access("postgresql+psycopg://ada:s%40cret@host:5/db?sslmode=require")
    assert (plain, environment["PGPASSWORD"]) == ("postgresql://ada@host:5/db?sslmode=require", "s@cret")


def test_continues_an_interrupted_backup(file_service, tmp_path):
    class InterruptedBackupError(Exception):
        pass

    left = ["listing", "first blob"]

    def stop():
        left.pop(0)
        if not left:
            raise InterruptedBackupError

    with pytest.raises(InterruptedBackupError):
        service_backup.back_up(file_service.config, BusyTarget(tmp_path / "backup", stop, times=2))
    assert list((tmp_path / "backup" / "jobs").rglob("*.json"))
    after = ServiceConfig(data_dir=tmp_path / "after")
    with pytest.raises(ConfigError, check=lambda error: error.field == "SOURCE"):
        service_backup.restore(after, LocalBlobs(tmp_path / "backup"))
    service_backup.back_up(file_service.config, LocalBlobs(tmp_path / "backup"))
    service_backup.restore(after, LocalBlobs(tmp_path / "backup"))
    assert checkpoints(after, file_service.lease.job_id) == {1: b"1"}


def test_keeps_backup_of_another_service(file_service, tmp_path):
    target = LocalBlobs(tmp_path / "backup")
    service_backup.back_up(file_service.config, target)
    other = Service(ServiceConfig(data_dir=tmp_path / "other"))
    other.store.close()
    with pytest.raises(ConfigError, check=lambda error: error.field == "TARGET"):
        service_backup.back_up(other.config, target)


def test_names_a_service_that_is_not_there(tmp_path, capsys):
    settings = ["--json", "--set", f"data_dir={tmp_path / 'none'}"]
    assert service_backup.main([*settings, "backup", str(tmp_path / "backup")]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["field"] == "database_url"
