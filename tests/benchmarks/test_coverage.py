import json

import numpy as np
import pytest

from benchmarks.common import RESULTS
from benchmarks.coverage import GUIDE, cases, simulated, with_table


def test_shows_the_simulated_coverage_in_the_guide():
    found = json.loads((RESULTS / "coverage.json").read_text())["details"]["cases"]
    assert [one["what"] for one in found] == [one.what for one in cases()]
    page = GUIDE.read_text()
    assert page == with_table(page, found), "run `python -m benchmarks coverage`"
    assert found[0]["what"] in page


def test_counts_the_intervals_on_each_side_of_the_truth():
    one = next(iter(cases()))
    ends = iter([(0.6, 0.9), (0.4, 0.6), (0.1, 0.45), (0.5, 0.5)])
    case = type(one)(of="means", what="made up", truth=0.5, draw=lambda g: next(ends))
    found = simulated(case, np.random.default_rng(0), repeats=4)
    assert (found.coverage, found.too_high, found.too_low) == (0.5, 0.25, 0.25)
    assert not found.as_promised


@pytest.mark.parametrize("of", ["means", "pass@k, pass^k", "compare", "ratings"])
def test_draws_every_case(of):
    rng = np.random.default_rng(1)
    assert all(0 <= simulated(case, rng, repeats=2).coverage <= 1 for case in cases() if case.of == of)
