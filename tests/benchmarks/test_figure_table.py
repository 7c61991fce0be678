from benchmarks.__main__ import NAMES
from benchmarks.figure_table import README, with_figures


def test_the_readme_says_what_the_result_files_say():
    text = README.read_text()
    assert text == with_figures(text, list(NAMES)), "run `python -m benchmarks --readme`"
