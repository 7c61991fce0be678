"""Images that were exchanged after sampling: refused, or seen by the comparison that stops the job."""

import pytest

from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.episodes.record_check import require_sound
from backend.learner.learner import Learner
from backend.learner.sequences import TokenLimits, TrainSequence
from backend.policies.parity import Prompt, parity, probe, prompt_of
from tests.backend.vlm import NANO_VL, Pictures, look, picture, renderer
from tinkergym.errors import ParityError, UnsupportedPartError
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.jobs.parts import LoRA
from tinkergym.trajectory.content_parts import ImageSpan
from tinkergym.trajectory.trajectory import Segment, StopReason, Trajectory, Turn

ALLOWED = 1e-3


@pytest.fixture(scope="module")
def pictures():
    return Pictures()


@pytest.fixture(scope="module")
def learner(pictures):
    learner = Learner(NANO_VL, images=pictures)
    learner.create_policy("p", LoRA(), seed=0)
    return learner


@pytest.fixture(scope="module")
def engine(pictures):
    engine = TransformersEngine(NANO_VL, images=pictures)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def segment(engine):
    """An answer to a prompt with two images, as it was sampled."""
    request = look("r", 1, 2)
    (answer,) = engine.generate_together([request])
    prompt, sampled = len(request.prompt_ids), len(answer.token_ids)
    return Segment(
        token_ids=[*request.prompt_ids, *answer.token_ids],
        loss_mask=[False] * prompt + [True] * sampled,
        sampling_logprobs=[None] * prompt + answer.sampling_logprobs,
        images=request.images,
    )


def changed(segment, how):
    first, second = segment.images
    images = {
        "nothing": [first, second],
        "swapped": [first.model_copy(update={"sha256": picture(3).sha256}), second],
        "reordered": [
            ImageSpan(sha256=second.sha256, start=first.start, end=first.end),
            ImageSpan(sha256=first.sha256, start=second.start, end=second.end),
        ],
        "removed": [first],
        "moved": [first, ImageSpan(sha256=second.sha256, start=second.start + 1, end=second.end + 1)],
        "shorter": [first, ImageSpan(sha256=second.sha256, start=second.start, end=second.end - 1)],
    }[how]
    return segment.model_copy(update={"images": images})


def compared(learner, segment):
    sequence = TrainSequence.from_segment(segment, advantage=1.0)
    return parity(ALLOWED, [sequence], learner.logprobs("p", [sequence]))


def checked(learner, segment):
    start = segment.loss_mask.index(True)
    turn = Turn(
        segment=0,
        start=start,
        end=len(segment.token_ids),
        reward=1.0,
        policy_version=0,
        finish_reason="stop",
        observation="look",
        action="x",
    )
    trajectory = Trajectory(
        segments=[segment],
        turns=[turn],
        terminated=True,
        truncated=False,
        stop_reason=StopReason.TERMINATED,
        seed=0,
    )
    require_sound(EpisodeResult(episode_id="e", lease_id="l", trajectories=[trajectory]), learner.limits)


def test_passes_an_untouched_record(learner, segment):
    checked(learner, segment)
    assert compared(learner, segment)["parity_mean"] <= 1e-5


@pytest.mark.parametrize("how", ["removed", "moved", "shorter"])
def test_rejects_images_that_do_not_fit_the_tokens(learner, segment, how):
    with pytest.raises(UnsupportedPartError) as caught:
        checked(learner, changed(segment, how))
    assert caught.value.field == "results.trajectories"


@pytest.mark.parametrize("how", ["swapped", "reordered"])
def test_stops_job_on_exchanged_images_by_comparing_logprobs(learner, segment, how):
    checked(learner, changed(segment, how))
    with pytest.raises(ParityError):
        compared(learner, changed(segment, how))


def test_probes_version_with_images_of_its_prompts(engine, learner, segment):
    engine.publish("p", 1, learner.weights("p"))
    prompt = prompt_of(segment.token_ids, segment.loss_mask, segment.images)
    assert list(prompt.images) == list(segment.images)
    (probed,) = probe(engine, "p", 1, [prompt], temperature=1.0)
    assert parity(ALLOWED, [probed], learner.logprobs("p", [probed]))["parity_mean"] <= 1e-5


def test_never_cuts_a_prompt_inside_an_image():
    request = look("r", 1, 2)
    second = request.images[1]
    cut = Prompt(request.prompt_ids, request.images).cut_to(second.start + 3)
    assert (len(cut.token_ids), list(cut.images)) == (second.start, request.images[:1])
    assert TokenLimits(vocabulary=1, context_length=None).images is None
    assert renderer().images.tokens == second.end - second.start
