"""What is computed of images, and what is kept of it."""

import pytest
import torch

from backend.compute.whole_model import load_whole
from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.vision.pixels import ImageReader
from backend.vision.shared_caches import SharedImages
from backend.vision.tower import ImageTower, KeptFeatures
from tests.backend.vlm import NANO_VL, Pictures, look, picture, renderer
from tinkergym.images.stored_images import image_file
from tinkergym.schema.jobs.parts import FullParameters, LoRA


@pytest.fixture(scope="module")
def tower():
    reader = ImageReader(NANO_VL, renderer().images.placeholder, Pictures())
    return ImageTower(load_whole(NANO_VL, dtype=torch.float32).eval(), reader)


@pytest.mark.parametrize("gradient", [False, True])
def test_gives_bit_equal_features_of_image_alone_and_among_others(tower, gradient):
    hashes = [picture(number).sha256 for number in range(21)]
    with torch.set_grad_enabled(gradient):
        alone = [tower.features([sha256])[0] for sha256 in hashes]
        for order in (hashes, hashes, hashes[::-1], hashes[3:8]):
            for sha256, found in zip(order, tower.features(order), strict=True):
                assert torch.equal(found, alone[hashes.index(sha256)])


def test_computes_images_of_other_shapes_beside_each_other(tower):
    import numpy as np

    wide = image_file(np.random.default_rng(7).integers(0, 255, (20, 60, 3), np.uint8))
    tower.reader._source.files[wide.sha256] = wide
    hashes = [picture(1).sha256, wide.sha256, picture(2).sha256]
    together = tower.features(hashes)
    assert all(
        torch.equal(found, tower.features([one])[0]) for one, found in zip(hashes, together, strict=True)
    )


def test_reads_and_sees_each_image_once_in_engine_and_learner(monkeypatch):
    pictures = Pictures()
    images = SharedImages(pictures)
    engine, learner = TransformersEngine(NANO_VL, images=images), Learner(NANO_VL, images=images)
    computed = []
    compute = ImageTower._computed
    monkeypatch.setattr(
        ImageTower, "_computed", lambda self, some: computed.extend(some) or compute(self, some)
    )
    try:
        requests = [look(f"{number}", number) for number in range(3)]
        answers = engine.generate_together([*requests, *requests])
        seen = len(computed)
        assert pictures.reads == 3
        learner.create_policy("p", LoRA(rank=4), seed=0)
        sequences = [
            TrainSequence.sampled(*pair) for pair in zip([*requests, *requests], answers, strict=True)
        ]
        for _ in range(2):
            learned = learner.logprobs("p", sequences)
            for found, answer in zip(learned, answers, strict=True):
                assert found.tolist() == pytest.approx(answer.sampling_logprobs, abs=1e-5)
        assert learner.logprobs(None, sequences)[0].tolist() == learned[0].tolist()
        assert (pictures.reads, len(computed)) == (3, seen)
        # What trains its own tower sees for itself.
        learner.create_policy("own", FullParameters(), seed=0)
        learner.logprobs("own", sequences)
        assert (pictures.reads, len(computed) > seen) == (3, True)
    finally:
        engine.close()


def test_keeps_features_by_weights_up_to_a_size():
    kept = KeptFeatures(most_bytes=3 * 40)
    for weights in ("a", "b"):
        for name in ("x", "y"):
            kept.keep(weights, name, torch.full((10,), float(ord(weights) + ord(name))))
    assert kept.find("a", "x") is None
    assert float(kept.find("b", "y")[0]) == ord("b") + ord("y")
    kept.drop_if(lambda weights: weights == "b")
    assert (kept.find("b", "y"), kept.find("a", "y") is None) == (None, False)


def test_rereads_an_image_when_others_took_its_memory():
    pictures = Pictures()
    reader = ImageReader(NANO_VL, renderer().images.placeholder, pictures, most_bytes=1)
    for number in (1, 2, 1):
        reader.image(picture(number).sha256)
    assert pictures.reads == 3
    reader.image(picture(1).sha256)
    assert pictures.reads == 3
