"""A bundle and a data folder, seen through the viewer's own gateway in this process."""

import asyncio
import hashlib
import shutil
from contextlib import closing

import httpx
import pytest

from backend.app.run_viewer import main, opened, shown_tenant, viewer_app
from backend.catalog.limited_reads import LimitedReads
from backend.config import ServiceConfig
from backend.errors import ConfigError
from backend.gateway.app import create_app
from backend.gateway.wiring import assembled
from backend.store.copied_runs import add_copied_episodes
from backend.store.kept_episodes import KeptEpisodes
from backend.store.key_rows import LOCAL_TENANT
from backend.store.place import DEFAULT_FILE
from backend.store.store import Store
from benchmarks.forgery import packed, unpacked
from tests.tinkergym.certificates.made_run import Run
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.rl import RLSpec


def seen(path, folder, *requests, tenant=""):
    """Return the answers of a viewer to these paths, and the page that it opens."""

    async def ask(config, store):
        key = store.keys.create(shown_tenant(store, tenant), "view", read_only=True)
        reads = LimitedReads()
        app = viewer_app(config, store, reads)
        headers = {"Authorization": f"Bearer {key}"}
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://localhost", headers=headers
            ) as client,
        ):
            answers = [(await client.get(one)).json() for one in requests]
        reads.close()
        return answers

    folder.mkdir()
    with opened(path, folder) as (config, store, page):
        return page, asyncio.run(ask(config, store))


@pytest.fixture
def bundle(tmp_path):
    return Run().bundle(tmp_path)


def test_shows_run_of_bundle_with_its_curves_and_episodes(bundle, tmp_path):
    run = Run()
    job_id = run.facts.job.job_id
    page, (job, series, rows, health) = seen(
        bundle,
        tmp_path / "own",
        f"/v1/jobs/{job_id}",
        f"/v1/jobs/{job_id}/series?name=loss",
        f"/v1/jobs/{job_id}/episodes/rows",
        "/v1/health",
    )
    assert page == f"/dashboard/jobs/{job_id}"
    assert job["spec"] == run.facts.job.model_dump(mode="json")["spec"]
    assert series["newest_step"] == max(run.episodes)
    assert len(rows["rows"]["step"]) >= sum(map(len, run.episodes.values()))
    assert health["status"] == "ok"


@pytest.fixture
def data_folder(tmp_path):
    """Return what makes a service's data folder in which these tenants have a job, and its open store."""
    stores = []

    def made(*tenants):
        config = ServiceConfig(data_dir=tmp_path / "data")
        store = Store.open(config.store_url)
        stores.append(store)
        spec = RLSpec.model_validate({"environment": {"id": "board/TicTacToeVs-v0"}, "steps": 3})
        for one in tenants:
            store.keys.ensure_tenant(one)
        return config.data_dir, [store.tenant(one).create_job(spec, {}).job_id for one in tenants]

    yield made
    for store in stores:
        store.close()


def content(folder):
    """What a folder holds, without the index that SQLite keeps of a log."""
    files = [one for one in folder.rglob("*") if one.is_file() and not one.name.endswith("-shm")]
    return {str(one.relative_to(folder)): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}


def test_shows_data_folder_and_changes_nothing_in_it(data_folder, tmp_path):
    data, (job_id,) = data_folder(LOCAL_TENANT)
    killed = tmp_path / "killed"
    shutil.copytree(data, killed)  # the log is still beside the database
    for number, folder in enumerate((data, killed)):
        before = content(folder)
        assert f"{DEFAULT_FILE}-wal" in before
        page, (found,) = seen(folder, tmp_path / f"own{number}", "/v1/jobs")
        assert (page, [one["job_id"] for one in found["jobs"]]) == ("/dashboard", [job_id])
        assert content(folder) == before


def test_reads_files_of_the_copy_and_not_of_the_original(data_folder, tmp_path):
    run = Run()
    job_id, step = run.facts.job.job_id, max(run.episodes)
    data, _ = data_folder()
    config = ServiceConfig(data_dir=data)
    with closing(Store.open(config.store_url)) as store:
        store.keys.ensure_tenant(LOCAL_TENANT)
        store.add_copied_run(LOCAL_TENANT, run.facts.job, [], [])
    add_copied_episodes(KeptEpisodes(config.job_files.below(job_id)), step, run.episodes[step])
    copied = tmp_path / "copied"
    shutil.copytree(data, copied)
    shutil.rmtree(data / "jobs")
    _, (rows,) = seen(copied, tmp_path / "own", f"/v1/jobs/{job_id}/episodes/rows")
    assert set(rows["rows"]["step"]) == {step}
    shutil.rmtree(copied / "jobs")
    _, (rows,) = seen(copied, tmp_path / "again", f"/v1/jobs/{job_id}/episodes/rows")
    assert rows["rows"]["step"] == []


def test_answers_nothing_that_would_change_a_run(data_folder, tmp_path):
    data, _ = data_folder(LOCAL_TENANT)
    (tmp_path / "own").mkdir()
    with opened(data, tmp_path / "own") as (config, store, _):
        key = store.keys.create(LOCAL_TENANT, "may act")
        reads = LimitedReads()
        document = create_app(assembled(config, store, reads)).openapi()
        changing = [
            (method, path)
            for path, methods in document["paths"].items()
            for method in methods
            if method in {"post", "put", "delete", "patch"}
        ]

        async def ask():
            app = viewer_app(config, store, reads)
            headers = {"Authorization": f"Bearer {key}"}
            transport = httpx.ASGITransport(app)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(
                    transport=transport, base_url="http://localhost", headers=headers
                ) as client,
            ):
                return {(await client.request(*one, json={})).status_code for one in changing}

        assert len(changing) > 20
        assert asyncio.run(ask()) <= {404, 405}
        reads.close()


def test_shows_the_only_tenant_and_asks_among_several(data_folder, tmp_path):
    data, (ada,) = data_folder("ada")
    _, (found,) = seen(data, tmp_path / "one", "/v1/jobs")
    assert [one["job_id"] for one in found["jobs"]] == [ada]
    _, (bob,) = data_folder("bob")
    for number, wrong in enumerate(("", "carl")):
        with pytest.raises(InvalidRequestError) as refused:
            seen(data, tmp_path / f"wrong{number}", "/v1/jobs", tenant=wrong)
        assert refused.value.field == "tenant"
    _, (found,) = seen(data, tmp_path / "named", "/v1/jobs", tenant="bob")
    assert [one["job_id"] for one in found["jobs"]] == [bob]
    _, (own,) = data_folder(LOCAL_TENANT)
    _, (found,) = seen(data, tmp_path / "local", "/v1/jobs")
    assert [one["job_id"] for one in found["jobs"]] == [own]


@pytest.mark.parametrize("cut", [100, 3000, -12000])
def test_names_a_cut_bundle_in_a_sentence(bundle, tmp_path, capsys, cut):
    bundle.write_bytes(bundle.read_bytes()[:cut])
    with pytest.raises(InvalidRequestError):
        seen(bundle, tmp_path / "own")
    assert main([str(bundle)]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("job_id", ["../evil", "/tmp/evil", "", "a b"])
def test_names_a_job_whose_id_is_no_folder(bundle, tmp_path, job_id):
    files = unpacked(bundle)
    body = files["certificate.json"].replace(b'"job_id": "job-1"', f'"job_id": "{job_id}"'.encode())
    with pytest.raises(InvalidRequestError):
        seen(packed(files | {"certificate.json": body}, tmp_path / "other.tar"), tmp_path / "own")


def test_names_what_is_no_run(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "missing", tmp_path / "text"):
        (tmp_path / "text").write_text("no bundle")
        shutil.rmtree(tmp_path / "own", ignore_errors=True)
        with pytest.raises((InvalidRequestError, ConfigError)):
            seen(path, tmp_path / "own")
