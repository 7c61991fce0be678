from types import ModuleType

import psutil
import pytest

from backend.admission.preflight import Preflight
from backend.admission.preflight_child import examine
from backend.config import CONFIG_VARIABLE
from backend.settings.gateway_limits import GatewayLimits
from tests.backend.admission.packs import PACK, Catalog, spec
from tinkergym.errors import (
    InvalidEnvironmentError,
    PromptTooLongError,
)
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.testing import byte_bundle

pytestmark = pytest.mark.service


@pytest.fixture
def preflight():
    return Preflight(Catalog(), GatewayLimits(job_check_seconds=60))


@pytest.fixture
def odd(register_environment):
    """The pack's environment in this process."""
    module = ModuleType("odd_here")
    exec(PACK, module.__dict__)
    register_environment("test/Odd-v0", module.Odd)
    return "test/Odd-v0"


def test_keeps_prints_of_an_environment_away_from_others(pack, preflight):
    assert preflight.check(spec(how="prints")).packs == {"odd": "0.3"}


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"how": "raises"}, "the reason of the user"),
        ({"how": "dies"}, "last words"),
    ],
)
def test_rejects_environment_that_cannot_start_in_its_own_words(pack, preflight, kwargs, text):
    with pytest.raises(InvalidEnvironmentError, match=text) as caught:
        preflight.check(spec(**kwargs))
    assert caught.value.field == "environment"


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"how": "raises_when_made"}, "no licence found"),
        ({"how": "numbers"}, "must be a str.*TrainRemotely"),
        ({"how": "image"}, "an image under 'screen'"),
        ({"how": "shown"}, "supports only text"),
        ({"how": "animated"}, "such as an animation"),
        ({"how": "silent"}, "empty list of messages"),
        ({"how": "no_info"}, "reset"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_rejects_first_observation_that_no_policy_could_read(odd, kwargs, text):
    with pytest.raises(InvalidEnvironmentError, match=text) as caught:
        examine(EnvironmentRef(id=odd, kwargs=kwargs), byte_bundle(context_length=200), None)
    assert caught.value.field == "environment"


def test_tells_an_environments_own_error_without_a_traceback(pack, preflight):
    with pytest.raises(InvalidEnvironmentError) as caught:
        preflight.check(spec(how="lacks"))
    assert "no column 'answer'" in caught.value.message
    assert "Traceback" not in str(caught.value)
    assert caught.value.field == "environment"


def test_lets_environment_read_only_listed_variables(pack, monkeypatch):
    for name in ("CANARY_KEY", "PACK_KEY", "RAY_AUTH_TOKEN", "TINKERGYM_API_KEY", CONFIG_VARIABLE):
        monkeypatch.setenv(name, f"value of {name}")
    limits = GatewayLimits(job_check_seconds=60)
    with pytest.raises(InvalidEnvironmentError) as caught:
        Preflight(Catalog(), limits, ["PACK_KEY"]).check(spec(how="variables"))
    seen = caught.value.message
    assert "PACK_KEY" in seen and "PATH" in seen
    for name in ("CANARY_KEY", "RAY_AUTH_TOKEN", "TINKERGYM_API_KEY", CONFIG_VARIABLE):
        assert name not in seen


def test_accepts_images_only_for_seeing_model_within_its_context(pack, preflight):
    assert preflight.check(spec(how="many", length=3, model="nano-vl")).packs == {"odd": "0.3"}
    with pytest.raises(PromptTooLongError):
        preflight.check(spec(how="many", length=60, model="nano-vl"))


def test_stops_hanging_environment(pack):
    pids = []
    limits = GatewayLimits(job_check_seconds=0.1)
    with pytest.raises(InvalidEnvironmentError, check=lambda error: error.code == "too_slow"):
        Preflight(Catalog(), limits, waited=lambda pid: pids.append(pid) or 0.0).check(spec(how="hangs"))
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []


def test_ends_with_its_check_everything_that_environment_started(pack):
    Preflight(Catalog(), GatewayLimits(job_check_seconds=60), ["ODD_PIDS"]).check(spec(how="leaves"))
    pids = [int(pid) for pid in (pack / "pids").read_text().split()]
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], 60)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
