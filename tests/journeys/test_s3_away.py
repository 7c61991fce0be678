"""A deterministic job whose object store stands still, or refuses connections, in the middle of its steps."""

import threading

import pytest

import tinkergym as tg
from tests.backend.s3_server import BUCKET
from tests.journeys.test_blobs_away import follow, train, weights
from tinkergym.cli.local_service import local_service
from tinkergym.schema.events import StateEvent, StepEvent

pytestmark = [pytest.mark.service, pytest.mark.full("trains a job three times"), pytest.mark.timeout(900)]

AWAY_SECONDS = 20.0


@pytest.fixture(scope="module")
def client(s3_server, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKERGYM_HOME", str(tmp_path_factory.mktemp("home")))
        for name in ("TINKERGYM_URL", "TINKERGYM_API_KEY"):
            patch.delenv(name, raising=False)
        with (
            local_service(announce=lambda line: None, settings=[f"blobs={BUCKET}/away"]),
            tg.Client() as client,
        ):
            yield client


@pytest.fixture(scope="module")
def undisturbed(client):
    return weights(train(client))


@pytest.mark.parametrize(("leave", "come_back"), [("freeze", "thaw"), ("close", "open")])
def test_waits_for_s3_and_ends_with_same_bits(client, undisturbed, s3_server, leave, come_back):
    job = train(client)
    follow(job, lambda body: isinstance(body, StepEvent) and body.step == 2)
    getattr(s3_server, leave)()
    back = threading.Timer(AWAY_SECONDS, getattr(s3_server, come_back))
    back.start()
    follow(job, lambda body: isinstance(body, StateEvent) and "blob store" in body.reason)
    waiting = job.view()  # The gateway answers.
    assert (waiting.state.final, waiting.attempt) == (False, 1)
    back.join()
    assert weights(job) == undisturbed
    assert [event.body.step for event in job.events() if isinstance(event.body, StepEvent)] == [1, 2, 3, 4, 5]
