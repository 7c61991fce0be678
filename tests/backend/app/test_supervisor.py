"""`tinkergym serve` as a process: what it starts, what it survives, and that nothing stays behind.

The gateway is the real one; the scheduler host is a stand-in that leaves a grandchild in a session of its
own, as Ray does.
"""

import re
import signal
import sys
import tempfile
import time
from contextlib import suppress

import httpx
import psutil
import pytest

from backend.app.supervisor import serve
from backend.config import ServiceConfig
from backend.errors import ConfigError
from backend.store.place import default_url
from backend.store.store import Store
from tests.backend.served import Served, refusal, still_alive
from tests.leftovers import belonging_to

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A service with half an image from before, and an offered model whose folder is missing."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "data").mkdir(mode=0o700)
    half_an_image(folder / "data", "before")
    served = Served(folder, settings=[f"models.gone={folder / 'gone'}", "models.hub=some/model"])
    yield served
    try:
        served.end_by(signal.SIGINT)
    finally:
        served.close()


def half_an_image(data_dir, name):
    """Write what a pool worker has written before an image is whole."""
    images = data_dir / "images" / "tenant"
    images.mkdir(parents=True, exist_ok=True)
    (images / f".draft-1-{name}").write_bytes(b"half")
    return images / f".draft-1-{name}"


def test_says_where_it_is_and_answers_before_everything_is_ready(shared):
    assert shared.url in shared.greeting
    assert str(shared.data_dir / "local.json") in shared.greeting
    assert "still starting: scheduler, pool:nano" in shared.greeting
    assert (shared.data_dir / "local.json").stat().st_mode & 0o777 == 0o600
    assert shared.get("/v1/health").json()["waiting_for"] == ["scheduler", "pool:nano"]
    assert shared.get("/v1/jobs").json()["jobs"] == []
    assert httpx.get(shared.url + "/v1/jobs", trust_env=False).status_code == 401


def test_names_offered_model_without_folder_at_the_start(shared):
    (warned,) = [line for line in shared.before_greeting if "cannot be used" in line]
    gone = str(shared.data_dir.parent / "gone")
    assert f"the model 'gone' cannot be used: {gone!r} is not a folder" in warned


def test_restarts_killed_gateway_on_same_port_while_requests_wait(shared):
    assert (shared.data_dir / "images" / "tenant" / ".draft-1-before").exists()
    draft = half_an_image(shared.data_dir, "now")
    killed = shared.gateway()
    killed.kill()
    psutil.wait_procs([killed], timeout=60.0)
    # Sent while nobody is there: the port stays open, so this waits instead of failing.
    assert shared.get("/v1/jobs").json()["jobs"] == []
    assert "gateway ended (SIGKILL)" in shared.process.stdout.readline()
    assert draft.exists()


@pytest.mark.full(
    "waits as long as a gateway may take; `test_probe` and `test_restarted_part` have the rules"
)
def test_restarts_a_gateway_that_hangs(shared):
    hung = shared.gateway()
    hung.suspend()
    assert "gateway ended (it stopped responding" in shared.process.stdout.readline()
    assert shared.get("/v1/jobs").json()["jobs"] == []
    assert shared.gateway() != hung


def test_restarts_a_scheduler_that_cannot_stay_and_leaves_nothing_between(serving):
    served = serving(ends=True)
    lines = [*served.before_greeting, *(served.process.stdout.readline() for _ in range(2))]
    assert all("the scheduler ended (exit code 3)" in line for line in lines)
    assert str(served.data_dir / "logs" / "scheduler.log") in lines[0]
    assert served.get("/v1/health").status_code == 200
    first = []
    for pid in served.pids_file.read_text().splitlines()[0].split():
        with suppress(psutil.NoSuchProcess):
            first.append(psutil.Process(int(pid)))
    # Killed ones may still wait for their parent.
    assert not still_alive(first)
    served.process.send_signal(signal.SIGHUP)
    assert served.process.wait(timeout=60.0) == 0


def test_keeps_key_and_jobs_over_restart_and_awaits_new_scheduler(shared):
    store = Store.open(default_url(shared.data_dir))
    store.service().touch_part("scheduler", now=time.time())
    store.close()
    assert "scheduler" not in shared.get("/v1/health").json()["waiting_for"]
    key = shared.local["api_key"]
    shared.end_by(signal.SIGTERM)
    with belonging_to("module"):
        shared.start()
    assert shared.local["api_key"] == key
    assert shared.get("/v1/jobs").status_code == 200
    assert "scheduler" in shared.get("/v1/health").json()["waiting_for"]


def test_rejects_second_service_on_one_data_folder(shared, capfd):
    text = refusal(capfd, f"data_dir={shared.data_dir}", "port=0")
    assert f"process {shared.process.pid}" in text
    assert shared.get("/v1/health").status_code == 200


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (["data_dir={folder}/file/inside"], "cannot be written"),
        (["data_dir=/proc/tinkergym"], "cannot be written"),
        (["data_dir={folder}/odd", "port=0"], "local.json cannot be written"),
        (["data_dir={folder}", "min_free_bytes=1000000000000000"], "free some space"),
        (["data_dir={folder}", "host=192.0.2.1"], "cannot listen on 192.0.2.1"),
        (["data_dir={folder}", "host=no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
        (["data_dir={folder}", "port=0", "database_url=sqlite:////proc/x.db"], "choose another database_url"),
    ],
)
def test_says_in_one_sentence_why_it_cannot_start(tmp_path, capfd, settings, text):
    (tmp_path / "file").write_text("")
    (tmp_path / "odd").mkdir(mode=0o700)
    (tmp_path / "odd" / "local.json").mkdir()
    assert text in refusal(capfd, *(setting.format(folder=tmp_path) for setting in settings))


@pytest.mark.parametrize("role", ["all", "gateway", "scheduler"])
def test_tries_the_blob_store_in_every_role(tmp_path, role):
    (tmp_path / "file").write_text("")
    config = ServiceConfig(data_dir=tmp_path / "data", blobs=str(tmp_path / "file" / "blobs"))
    with pytest.raises(ConfigError) as refused:
        serve(config, role=role)
    assert refused.value.field == "blobs"


def test_names_temporary_folder_whose_path_is_too_long_for_sockets(monkeypatch, capfd):
    def refused_with(folder):
        with monkeypatch.context() as patched:
            patched.setattr(tempfile, "tempdir", folder)  # what TMPDIR says when a process starts
            return refusal(capfd, f"data_dir=/proc/{'d' * 80}")

    folder = "/" + "t" * 80
    text = refused_with(folder)
    assert f"TMPDIR: the path of the temporary folder, {folder}, has 81 bytes" in text
    assert "set TMPDIR to a folder with a shorter path" in text
    most = int(re.search(r"allow only (\d+)", text)[1])
    assert "TMPDIR" in refused_with("/" + "t" * most)
    assert "cannot be written" in refused_with("/" + "t" * (most - 1))


@pytest.mark.parametrize(
    ("setting", "text"),
    [("data_dir=", "data_dir: is empty (name a folder"), ("prt=1", "did you mean port"), ("port=x", "port")],
)
def test_treats_wrong_setting_as_wrong_command_line(capfd, setting, text):
    assert text in refusal(capfd, setting, code=2)


def test_rejects_an_engine_that_is_not_installed_before_any_job(tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "vllm", None)  # whether it is installed here or not
    text = refusal(capfd, "engine=vllm", f"data_dir={tmp_path / 'data'}", "port=0")
    assert "engine: engine=vllm needs vLLM, which is not installed (make vllm" in text
    assert not (tmp_path / "data").exists()


def test_frees_the_data_folder_after_a_refusal(tmp_path, capfd):
    for _ in range(2):
        assert "cannot listen" in refusal(capfd, f"data_dir={tmp_path / 'data'}", "host=192.0.2.1")


@pytest.mark.full("starts a service of its own, to be ended by two signals")
def test_ends_deaf_process_immediately_by_a_second_signal(serving):
    served = serving(ignores_signals=True)
    served.scheduler_is_up()
    below = served.descendants()
    served.process.send_signal(signal.SIGTERM)
    psutil.wait_procs([served.gateway()], timeout=60.0)  # the first signal was heard
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(timeout=60.0) == 0
    assert still_alive(below) == []
