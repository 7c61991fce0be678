"""A job as it is stored: what its checks found, and the operator's limits."""

import hashlib

import pytest

from backend.admission.admission import Admission
from backend.admission.facts import Checked
from backend.admission.offered_models import FileCatalog
from backend.config import ServiceConfig
from backend.settings.gateway_limits import GatewayLimits
from backend.store.images import Images
from backend.store.store import Store
from backend.store.uploads import Uploads
from tests.backend.vlm import picture
from tests.tinkergym.algorithms.installed import ranks, site
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.dataset import SFTSpec
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.parsing import parse_spec
from tinkergym.schema.uploaded_data import DataChunk, DataManifest

__all__ = ["ranks", "site"]

QUIZ = "own/Quiz-v0"


class Check:
    """Finds the same in every environment."""

    def check(self, spec, tenant_id):
        return Checked(packs={"own": "1"}, environment_prompt="Be brief.", data={QUIZ: "a" * 64})

    def check_evaluations(self, spec, tenant_id):
        pass


@pytest.fixture
def admitted(tmp_path):
    """Return a function that admits ada's job."""
    config = ServiceConfig(data_dir=tmp_path, limits=GatewayLimits(prompt_images=2))
    store = Store.open(f"sqlite:///{tmp_path / 'store.sqlite3'}")
    store.keys.ensure_tenant("ada")

    def admit(spec):
        admission = Admission(config=config, catalog=FileCatalog(config), job_check=Check())
        return admission.check(store.tenant("ada"), spec)

    admit.config, admit.images = config, Images(config.images, store.tenant("ada").images)
    yield admit
    store.close()


def test_stores_with_the_job_what_the_service_read_of_environment(admitted):
    spec, packs = admitted(RLSpec(environment=EnvironmentRef(id=QUIZ), steps=1))
    assert packs == {"own": "1"}
    assert (spec.environment_prompt, spec.environment_data) == ("Be brief.", {QUIZ: "a" * 64})


def test_stores_the_version_of_an_algorithms_pack(admitted, ranks):
    own = {"environment": {"id": QUIZ}, "steps": 1, "algorithm": {"name": "ranks"}}
    assert admitted(parse_spec(own))[1] == {"own": "1", "tinkergym_ranks": "0.1"}


def test_keeps_what_the_client_read_of_its_environment(admitted):
    own = {"environment_prompt": "Be kind.", "environment_data": {QUIZ: "b" * 64}}
    spec, _ = admitted(RLSpec(environment=EnvironmentRef(id=QUIZ), steps=1, rollout="client", **own))
    assert (spec.environment_prompt, spec.environment_data) == tuple(own.values())


@pytest.mark.parametrize("images", [2, 3])
def test_holds_dataset_to_the_operators_limit_on_images(admitted, images):
    config, files = admitted.config, [picture(number) for number in range(images)]
    for one in files:
        admitted.images.add(one.sha256, one.data, config.limits)
    spans = [{"sha256": one.sha256, "start": place, "end": place + 1} for place, one in enumerate(files)]
    record = {"token_ids": [1] * (images + 1), "trained": [[images, images + 1]], "images": spans}
    body = DataChunk(kind="sft", records=[[record]]).model_dump_json().encode()
    name, uploads = hashlib.sha256(body).hexdigest(), Uploads(config.uploads, "ada")
    uploads.add_chunk(name, body, most_bytes=10**6)
    data = uploads.complete(DataManifest(kind="sft", chunks=[name]), most_bytes=10**6).data_id
    job = SFTSpec(model="nano-vl", data=data, steps=1, batch_size=1)
    if images == 2:
        assert admitted(job)[0].data == data
        return
    with pytest.raises(InvalidRequestError) as refused:
        admitted(job)
    assert refused.value.field == "data"
