from pathlib import Path

from scripts import mirrored


def test_has_test_of_same_path_for_most_modules():
    # Parts of a class are tested through it; below this, new modules came without any tests.
    assert mirrored.share() >= 0.70, mirrored.unmirrored()


def test_places_test_of_a_module_at_its_path():
    assert mirrored.test_of(Path("backend/jobs/sft_job.py")) == Path("tests/backend/jobs/test_sft_job.py")
    assert Path("backend/jobs/sft_job.py") in mirrored.modules()
