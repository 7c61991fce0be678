import pytest

from tinkergym import registration, rubrics, spaces, testing, tools, wrappers
from tinkergym.basics.extras import late_names


@pytest.mark.parametrize("package", [registration, rubrics, spaces, testing, tools, wrappers])
def test_finds_every_public_name(package):
    assert [name for name in package.__all__ if not hasattr(package, name)] == []


def test_imports_names_from_the_package_and_others():
    find = late_names("tinkergym.basics", {"bounded_dict": "BoundedDict", "tinkergym.core": "TextEnv"})
    assert (find("BoundedDict").__name__, find("TextEnv").__name__) == ("BoundedDict", "TextEnv")
    with pytest.raises(AttributeError):
        find("SingleTurnEnv")
