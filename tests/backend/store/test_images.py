import hashlib
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from backend.errors import BlobsUnavailableError
from backend.store.blobs import tenant_folder
from backend.store.image_rows import ImageRow
from backend.store.images import EveryImage, HeldImages, Images
from backend.store.usage import QuotaRoom
from tests.backend.store.counting_blobs import CountingBlobs
from tests.backend.vlm import picture
from tinkergym.errors import InvalidImageError, InvalidRequestError, NotFoundError, PayloadTooLargeError

LIMITS = {"image_bytes": 100_000, "image_pixels": 10_000, "images_bytes": 10**6, "stored_images": 1000}
NOW = 1e9


@pytest.fixture
def blobs(tmp_path, clock):
    clock.now = NOW
    return CountingBlobs(tmp_path / "images")


@pytest.fixture
def images_of(blobs, store):
    """Return a tenant's images."""

    def of(tenant, **settings):
        return Images(blobs, store.tenant(tenant).images, **settings)

    return of


@pytest.fixture
def used(store):
    """Let an image of ada's have been used last at some time."""

    def at(file, seconds):
        store.tenant("ada").images.add([ImageRow(sha256=file.sha256, bytes=len(file.data), used_at=seconds)])

    return at


@pytest.fixture
def unfinished(store, spec, clock):
    """Let ada have an unfinished job since some time."""

    def since(seconds):
        clock.now = seconds
        job = store.tenant("ada").create_job(spec, {})
        clock.now = NOW
        return job.job_id

    return since


def add(images, file, **limits):
    images.add(file.sha256, file.data, SimpleNamespace(**LIMITS | limits))


def test_keeps_image_private_to_tenant_and_readable_for_every_worker(blobs, images_of):
    ada, bob = images_of("ada"), images_of("bob")
    add(ada, picture(1))
    hashes = [picture(1).sha256, picture(2).sha256]
    assert (ada.missing(hashes), bob.missing(hashes)) == (hashes[1:], hashes)
    ada.require(hashes[:1])
    with pytest.raises(NotFoundError) as caught:
        bob.require(hashes[:1])
    assert caught.value.field == "images"
    assert EveryImage(blobs).read(hashes[0]) == picture(1).data
    with pytest.raises(NotFoundError):
        EveryImage(blobs).read(hashes[1])


def test_rejects_an_image_that_is_invalid_or_misnamed(blobs, images_of):
    images = images_of("ada")
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "wrong_hash"):
        images.add(picture(2).sha256, picture(1).data, SimpleNamespace(**LIMITS))
    broken = picture(1).data[:-30]
    with pytest.raises(InvalidImageError):
        images.add(hashlib.sha256(broken).hexdigest(), broken, SimpleNamespace(**LIMITS))
    for limit in ({"image_bytes": 100}, {"image_pixels": 64 * 63}):
        with pytest.raises(InvalidImageError):
            add(images, picture(1), **limit)
    assert blobs.files() == []


def test_keeps_a_tenants_share_and_evicts_old_images_where_allowed(images_of, used, store, unfinished):
    images = images_of("ada")
    room = len(picture(1).data) + len(picture(2).data)
    add(images, picture(1))
    add(images, picture(2))
    with pytest.raises(PayloadTooLargeError):
        add(images, picture(3), images_bytes=room)
    used(picture(1), 0.0)
    job_id = unfinished(1.0)
    with pytest.raises(PayloadTooLargeError):
        add(images, picture(3), images_bytes=room + 500)
    store.tenant("ada").request_cancel(job_id)
    add(images, picture(3), images_bytes=room + 500)
    assert images.missing(picture(n).sha256 for n in (1, 2, 3)) == [picture(1).sha256]
    # What is there already needs no room.
    add(images, picture(2), images_bytes=0)


@pytest.mark.parametrize("use", ["missing", "require", "add"])
def test_counts_an_image_that_is_used_again_as_new(use, images_of, used):
    images = images_of("ada")
    add(images, picture(1), stored_images=1)
    used(picture(1), 0.0)
    if use == "add":
        add(images, picture(1))
    else:
        getattr(images, use)([picture(1).sha256])
    with pytest.raises(PayloadTooLargeError):
        add(images, picture(2), stored_images=1)


@pytest.mark.parametrize(("hours", "stays"), [(3.5, True), (2.5, True), (0.5, False)])
def test_keeps_image_that_an_unfinished_job_can_need(hours, stays, images_of, used, unfinished):
    add(images_of("ada"), picture(1))
    used(picture(1), NOW - 3 * 3600)
    unfinished(NOW - hours * 3600)
    refused = pytest.raises(PayloadTooLargeError) if stays else nullcontext()
    with refused:
        add(images_of("ada"), picture(2), stored_images=1)
    assert (images_of("ada").missing([picture(1).sha256]) == []) is stays


def test_leaves_room_for_further_images_by_deleting_longest_unused_ones(images_of, used):
    images = images_of("ada")
    for number in range(16):
        add(images, picture(number))
        used(picture(number), number)
    add(images_of("ada"), picture(16), stored_images=16)
    assert images.missing(picture(number).sha256 for number in range(17)) == [
        picture(number).sha256 for number in range(3)
    ]


def test_bounds_number_of_a_tenants_images_however_small(images_of, used):
    images = images_of("ada")
    add(images, picture(1), stored_images=1)
    with pytest.raises(PayloadTooLargeError) as caught:
        add(images, picture(2), stored_images=1)  # the first is too new to go
    assert caught.value.field == "images"
    used(picture(1), 0.0)
    add(images, picture(2), stored_images=1)
    assert images.missing([picture(1).sha256, picture(2).sha256]) == [picture(1).sha256]


def test_keeps_share_without_looking_at_all_images_every_time(blobs, images_of):
    size = max(len(picture(number).data) for number in range(40))
    room = QuotaRoom()
    added = 0
    with pytest.raises(PayloadTooLargeError):
        for number in range(40):
            add(images_of("ada", room=room), picture(number), images_bytes=30 * size)
            added += 1
    assert sum(file.bytes for file in blobs.files()) <= 30 * size
    assert 30 <= added < 40
    assert len(blobs.listed) < added


def test_keeps_several_processes_within_the_share_together(blobs, images_of):
    rooms = [QuotaRoom() for _ in range(4)]
    size = max(len(picture(number).data) for number in range(40))
    with pytest.raises(PayloadTooLargeError):
        for number in range(40):
            images = images_of("ada", room=rooms[number % 4])
            add(images, picture(number), images_bytes=20 * size)
    assert sum(file.bytes for file in blobs.files()) <= 20 * size


def test_takes_over_images_of_earlier_versions_which_had_no_rows(images_of, store):
    add(images_of("ada"), picture(1))
    store.tenant("ada").images.remove(picture(1).sha256)
    hashes = [picture(1).sha256, picture(2).sha256]
    assert images_of("ada").missing(hashes) == hashes[1:]
    assert [row.sha256 for row in store.tenant("ada").images.all()] == hashes[:1]


def test_reads_image_of_the_tenants_that_sent_it(images_of, blobs, store):
    add(images_of("bob"), picture(1))
    source = EveryImage(blobs, store.service().image_owners)
    assert source.read(picture(1).sha256) == picture(1).data


def test_holds_images_of_requests_until_the_last_has_ended(blobs, images_of):
    ada, bob = images_of("ada"), images_of("bob")
    file = picture(1)
    requests = [HeldImages(blobs, "ada") for _ in range(2)]
    for request in requests:
        request.hold(file.sha256, file.data)
    for request in requests:
        ada.require([file.sha256], also_held=True)
        assert (ada.missing([file.sha256]), EveryImage(blobs).read(file.sha256)) == ([file.sha256], file.data)
        for images, also_held in ((ada, False), (bob, True)):
            with pytest.raises(NotFoundError):
                images.require([file.sha256], also_held=also_held)
        request.release()
    assert blobs.files() == []
    with pytest.raises(NotFoundError):
        ada.require([file.sha256], also_held=True)


def test_requires_sent_and_held_images_together(blobs, images_of):
    sent, held, other = (picture(number) for number in range(3))
    ada, request = images_of("ada"), HeldImages(blobs, "ada")
    add(ada, sent)
    request.hold(held.sha256, held.data)
    ada.require([sent.sha256, held.sha256], also_held=True)
    with pytest.raises(NotFoundError):
        ada.require([sent.sha256, held.sha256, other.sha256], also_held=True)


def test_keeps_no_image_of_a_request_that_has_ended(blobs):
    assert not HeldImages(blobs, "ada").end()
    request = HeldImages(blobs, "ada")
    request.hold(picture(1).sha256, picture(1).data)
    assert request.end()
    request.release()
    for number in (1, 2):
        request.hold(picture(number).sha256, picture(number).data)
    assert blobs.files() == []


def test_releases_all_images_but_those_that_cannot_be_removed(tmp_path):
    class Stuck(CountingBlobs):
        def delete(self, key):
            if picture(1).sha256 in key:
                raise BlobsUnavailableError("away", hint="")
            return super().delete(key)

    blobs = Stuck(tmp_path)
    request = HeldImages(blobs, "ada")
    for number in range(3):
        request.hold(picture(number).sha256, picture(number).data)
    request.release()
    assert len(blobs.files()) == 1
    assert EveryImage(blobs).read(picture(1).sha256) == picture(1).data


def test_finds_held_images_without_asking_each_tenant(tmp_path, blobs):
    asked = []

    class Asked(CountingBlobs):
        def get(self, key):
            asked.append(key)
            return super().get(key)

        def folders(self, key=""):
            asked.append(key)
            return super().folders(key)

    for tenant in ("bob", "eve", "fay"):
        blobs.put(f"{tenant_folder(tenant)}/{picture(2).sha256}", b"an image")
    HeldImages(blobs, "ada").hold(picture(1).sha256, picture(1).data)
    source = EveryImage(Asked(tmp_path / "images"), lambda _: [])
    assert source.read(picture(1).sha256) == picture(1).data
    assert len(asked) == 1


def test_writes_no_rows_for_a_tenant_without_images(blobs):
    def refuse(rows):
        raise AssertionError

    rows = SimpleNamespace(tenant_id="ada", use=lambda _: set(), none=lambda: True, add=refuse)
    hashes = [picture(1).sha256]
    assert Images(blobs, rows).missing(hashes) == hashes
