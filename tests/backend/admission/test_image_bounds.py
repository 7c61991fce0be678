"""`limits.prompt_images` is one limit, whichever way the images come."""

import hashlib

import pytest

from backend.admission.model_inputs import datasets_fit
from backend.admission.preflight import Preflight
from backend.admission.request_bounds import refuse_many_images
from backend.config import ServiceConfig
from backend.settings.gateway_limits import GatewayLimits
from backend.store.images import Images
from backend.store.store import Store
from backend.store.uploads import Uploads
from tests.backend.admission.packs import Catalog, admit, facts, spec
from tests.backend.vlm import picture
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.dataset import SFTSpec
from tinkergym.schema.uploaded_data import DataChunk, DataManifest


def test_accepts_as_many_images_as_the_limit():
    refuse_many_images(3, 3, field="images")
    with pytest.raises(InvalidRequestError) as caught:
        refuse_many_images(4, 3, field="images")
    assert caught.value.field == "images"


@pytest.mark.service
def test_rejects_first_prompt_with_too_many_images_before_job_starts(pack):
    preflight = Preflight(Catalog(), GatewayLimits(job_check_seconds=120, prompt_images=2))
    preflight.check(spec(how="many", length=2, model="nano-vl"))
    with pytest.raises(InvalidRequestError) as caught:
        preflight.check(spec(how="many", length=3, model="nano-vl"))
    assert caught.value.field == "environment"


def test_rejects_dataset_with_too_many_images_in_a_sequence(tmp_path):
    config = ServiceConfig(data_dir=tmp_path, limits=GatewayLimits(prompt_images=3))
    store = Store.open(config.store_url)
    store.keys.ensure_tenant("ada")
    ada = store.tenant("ada")
    data_id = uploaded(config.uploads, Images(config.images, ada.images), images=[1, 3])
    job = SFTSpec(model="nano-vl", data=data_id, steps=1, batch_size=1)
    admit(datasets_fit, job, facts(config, Catalog(), ada))
    strict = config.model_copy(update={"limits": GatewayLimits(prompt_images=2)})
    with pytest.raises(InvalidRequestError) as caught:
        admit(datasets_fit, job, facts(strict, Catalog(), ada))
    assert caught.value.field == "data"
    store.close()


def uploaded(blobs, kept, images):
    """Store a set whose sequences have these numbers of images, and return its id."""
    uploads = Uploads(blobs, "ada")
    files = [picture(number) for number in range(max(images))]
    for file in files:
        kept.add(file.sha256, file.data, GatewayLimits())
    chunks = [chunk(files[:count]) for count in images]
    for body in chunks:
        uploads.add_chunk(hashlib.sha256(body).hexdigest(), body, most_bytes=10**6)
    names = [hashlib.sha256(body).hexdigest() for body in chunks]
    return uploads.complete(DataManifest(kind="sft", chunks=names), most_bytes=10**6).data_id


def chunk(files):
    spans = [{"sha256": file.sha256, "start": place, "end": place + 1} for place, file in enumerate(files)]
    sequence = {
        "token_ids": [1] * (len(files) + 1),
        "trained": [[len(files), len(files) + 1]],
        "images": spans,
    }
    return DataChunk(kind="sft", records=[[sequence]]).model_dump_json().encode()
