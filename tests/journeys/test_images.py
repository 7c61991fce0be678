"""Images from an environment to the learner, and what happens to a record whose images were exchanged."""

import gymnasium as gym
import numpy as np
import pytest
from transformers import AutoProcessor

import tinkergym as tg
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.errors import JobFailedError, ParityError
from tinkergym.remote.rollout_transport import HttpRolloutTransport
from tinkergym.schema.events import JobState

pytestmark = pytest.mark.service


class TwoPictures(gym.Env):
    """Shows two pictures of noise; pays for short answers."""

    observation_space = gym.spaces.Dict(
        {"images": gym.spaces.Tuple([tg.spaces.Image(64, 64)] * 2), "text": tg.spaces.Text()}
    )
    action_space = tg.spaces.Text()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        noise = self.np_random.integers(0, 255, (2, 64, 64, 3), np.uint8)
        return {"images": tuple(noise), "text": "Find the area."}, {}

    def step(self, action):
        nothing = {"images": (np.zeros((64, 64, 3), np.uint8),) * 2, "text": ""}
        return nothing, -float(len(action)), True, False, {}


def train(client):
    return client.train(
        TwoPictures,
        model="nano-vl",
        algorithm=tg.GRPO(group_size=2, groups_per_step=2),
        sampling=tg.Sampling(max_turn_tokens=4, temperature=2.0),
        steps=1,
    )


def reordered(request):
    """The record of each episode with its two images in the other order."""

    def changed(segment):
        first, second = segment.images
        images = [
            first.model_copy(update={"sha256": second.sha256}),
            second.model_copy(update={"sha256": first.sha256}),
        ]
        return segment.model_copy(update={"images": images})

    def of_trajectory(one):
        return one.model_copy(update={"segments": [changed(segment) for segment in one.segments]})

    results = [
        result.model_copy(update={"trajectories": [of_trajectory(one) for one in result.trajectories]})
        for result in request.results
    ]
    return request.model_copy(update={"results": results})


@pytest.mark.full("starts a pool of another model")
def test_learns_from_images_and_stops_when_its_records_were_exchanged(client, monkeypatch, tmp_path):
    job = train(client)
    job.wait()
    assert job.state is JobState.COMPLETED
    job.export(tmp_path / "exported")
    processor = AutoProcessor.from_pretrained(tmp_path / "exported")
    assert processor.image_seq_len == AutoProcessor.from_pretrained(PACKAGED_MODELS["nano-vl"]).image_seq_len
    submit = HttpRolloutTransport.submit
    monkeypatch.setattr(HttpRolloutTransport, "submit", lambda self, sent: submit(self, reordered(sent)))
    with pytest.raises(JobFailedError) as caught:
        train(client).wait()
    assert isinstance(caught.value.__cause__, ParityError)
