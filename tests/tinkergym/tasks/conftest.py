import pytest

from tests.tinkergym.tasks.forms import FORMS


@pytest.fixture(params=FORMS, ids=lambda form: form.__name__)
def make(request, tmp_path):
    return request.param(tmp_path)
