"""Two real processes for all files of this folder: each takes seconds to start."""

import pytest

from backend.learner.parallel.data_parallel import DataParallelLearner


@pytest.fixture(scope="package")
def divided_group(model_dir):
    """Cuts its batches into many micro-batches, of which one rank has more than the other."""
    with DataParallelLearner(
        model_dir, ranks=2, micro_batch_tokens=24, silence_seconds=240.0, divide_from=1
    ) as group:
        yield group
