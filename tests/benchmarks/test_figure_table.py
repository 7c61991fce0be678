from benchmarks.__main__ import NAMES
from benchmarks.figure_table import PAGE, with_figures


def test_repeats_on_the_page_what_the_result_files_say():
    text = PAGE.read_text()
    assert text == with_figures(text, list(NAMES)), "run `python -m benchmarks --docs`"
