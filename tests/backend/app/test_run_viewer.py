"""A bundle and a data folder, seen through the viewer's own gateway in this process."""

import asyncio
import hashlib
import shutil

import httpx
import pytest

from backend.app.run_viewer import main, opened
from backend.catalog.limited_reads import LimitedReads
from backend.config import ServiceConfig
from backend.errors import ConfigError
from backend.gateway.app import create_app
from backend.gateway.wiring import assembled
from backend.store.key_rows import LOCAL_TENANT
from backend.store.place import DEFAULT_FILE
from backend.store.store import Store
from tests.tinkergym.certificates.made_run import Run
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.rl import RLSpec


def seen(path, folder, *requests):
    """Return the answers of a viewer to these paths, and the page that it opens."""

    async def ask(config, store):
        key = store.keys.create(LOCAL_TENANT, "view", read_only=True)
        reads = LimitedReads()
        app = create_app(assembled(config, store, reads))
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


def test_shows_data_folder_and_changes_nothing_in_it(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    config = ServiceConfig(data_dir=data)
    store = Store.open(config.store_url)
    store.keys.ensure_tenant(LOCAL_TENANT)
    spec = RLSpec.model_validate({"environment": {"id": "board/TicTacToeVs-v0"}, "steps": 3})
    job_id = store.tenant(LOCAL_TENANT).create_job(spec, {}).job_id
    store.close()
    before = hashlib.sha256((data / DEFAULT_FILE).read_bytes()).hexdigest()
    page, (found,) = seen(data, tmp_path / "own", "/v1/jobs")
    assert (page, [one["job_id"] for one in found["jobs"]]) == ("/dashboard", [job_id])
    assert hashlib.sha256((data / DEFAULT_FILE).read_bytes()).hexdigest() == before


@pytest.mark.parametrize("cut", [100, 3000, -12000])
def test_names_a_cut_bundle_in_a_sentence(bundle, tmp_path, capsys, cut):
    bundle.write_bytes(bundle.read_bytes()[:cut])
    with pytest.raises(InvalidRequestError):
        seen(bundle, tmp_path / "own")
    assert main([str(bundle)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_names_what_is_no_run(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "missing", tmp_path / "text"):
        (tmp_path / "text").write_text("no bundle")
        shutil.rmtree(tmp_path / "own", ignore_errors=True)
        with pytest.raises((InvalidRequestError, ConfigError)):
            seen(path, tmp_path / "own")
