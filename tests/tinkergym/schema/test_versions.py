import pytest

import tinkergym as tg
from backend.gateway import routes_service
from backend.testing.scripted_service import ScriptedService
from tinkergym.errors import VersionMismatchError
from tinkergym.schema.versions import require_same_version


@pytest.mark.parametrize("service", ["0.1.0", "0.1.7", "0.1.0.dev3", "0.1"])
def test_accepts_versions_that_differ_in_the_last_number(service):
    require_same_version("0.1.0", service)


@pytest.mark.parametrize("service", ["0.2.0", "1.1.0", "0", ""])
def test_rejects_other_versions_with_what_to_install(service):
    with pytest.raises(VersionMismatchError) as refused:
        require_same_version("0.1.0", service)
    assert f"pip install 'tinkergym=={service}'" in refused.value.hint


def test_compares_versions_at_the_first_call(monkeypatch):
    monkeypatch.setattr(routes_service, "__version__", "9.9.0")
    with ScriptedService() as service, pytest.raises(VersionMismatchError):
        tg.Client(service.url, service.api_key)
