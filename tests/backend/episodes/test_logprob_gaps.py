import numpy as np
import pytest

from backend.episodes.logprob_gaps import LogprobGaps, gaps_of, read_gaps
from backend.store.local_blobs import LocalBlobs
from tinkergym.trajectory.trajectory import Segment, Trajectory

SEGMENT = Segment(
    token_ids=[5, 6, 7, 8, 9],
    loss_mask=[False, True, True, False, True],
    sampling_logprobs=[None, -1.0, -2.0, None, -0.5],
)


def seat(agent, *segments):
    more = {"terminated": True, "truncated": False, "stop_reason": "terminated", "seed": 1}
    return Trajectory(agent=agent, segments=list(segments), turns=[], **more)


def test_keeps_the_gap_of_each_trained_token(tmp_path):
    gaps, files = LogprobGaps(), LocalBlobs(tmp_path)
    trained = [False, True, False, False, True]
    gaps.add(3, (7, "white", 1), SEGMENT, trained, np.asarray([-0.75, -1.5], dtype=np.float32))
    (written,) = gaps.take().items()
    gaps_of(files).write(*written, epoch=1)
    seats = [seat("white", SEGMENT, SEGMENT), seat("black", SEGMENT)]
    assert read_gaps(files, 3, 7, seats) == {"white": [[], [pytest.approx(0.25), None, pytest.approx(-1.0)]]}
    assert read_gaps(files, 3, 8, seats) == read_gaps(files, 4, 7, seats) == gaps.take() == {}
