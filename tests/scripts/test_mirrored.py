from pathlib import Path

from scripts import mirrored


def test_most_modules_have_a_test_of_the_same_path():
    # Below this, new modules came without tests.
    assert mirrored.share() >= 0.8, mirrored.unmirrored()


def test_the_test_of_a_module_stands_at_its_path():
    assert mirrored.test_of(Path("backend/jobs/rl.py")) == Path("tests/backend/jobs/test_rl.py")
    assert Path("backend/jobs/rl.py") in mirrored.modules()
