"""`PythonTool` on a machine without namespaces: refused wherever a job or an evaluation can reach it."""

import json
import subprocess
import sys

import pytest

pytestmark = [
    # The kernel hides namespaces from a process for good, so it cannot be this one.
    pytest.mark.service,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has namespaces to hide"),
]

TRIES = """
import json, sys
from backend.admission.preflight import Preflight
from backend.admission.bounds import tools_are_installed
from backend.app.machine_checks import isolation_notice
from backend.settings.gateway_limits import GatewayLimits
from backend.evaluations.evaluation_child import play
from backend.workers.env_worker_process import environment_maker
from pathlib import Path
from tests.backend.admission.packs import Catalog
from tinkergym.errors import TinkerGymError
from tinkergym.rollout.table_tools import SeatToolbox
from tinkergym.schema.evaluate_every import EvaluateEvery
from tinkergym.schema.evaluation import EvaluationEpisode, EvaluationRequest
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.parts import Sampling
from tinkergym.schema.jobs.seats import Train
from tinkergym.schema.seat_tools import SeatTools
from tinkergym.serving.making import description_of
from tinkergym.serving.server_settings import ServerSettings
from tinkergym.tools import PythonTool
from tinkergym.tools.sandbox.python_run import run_python
from tinkergym.tools.sandbox.isolation_rule import require

ID, TOOL = "math/ArithmeticWithPython-v0", "tinkergym.tools:PythonTool"
ref = EnvironmentRef(id=ID)
job = dict(model="bytes", steps=1, sampling=Sampling(max_turn_tokens=4))
preflight = Preflight(Catalog(), GatewayLimits(job_check_seconds=120))
played = RLSpec(environment=ref, **job)
evaluated = RLSpec(environment={"id": "math/Arithmetic-v0"}, evaluate=[EvaluateEvery(1, ID)], **job)
agents = {"x": Train(), "o": Train(tools=[TOOL])}
seated = RLSpec(environment={"id": "board/TicTacToe-v0"}, agents=agents, **job)
episode = EvaluationEpisode(episode_id="0", seed=0, sampling_seed=0)
wanted = EvaluationRequest(environment=ref, policy="p", model="bytes", episodes=[episode])
places = {
    "seat": lambda: tools_are_installed(seated, None),
    "pack": lambda: preflight.check(played),
    "evaluation of a job": lambda: preflight.check_evaluations(evaluated),
    "evaluation": lambda: list(play(wanted, "http://127.0.0.1:1", "")),
    "environment worker": lambda: environment_maker([])(ref),
    "seat of a worker": lambda: SeatToolbox(SeatTools(tools=[{"tool": TOOL}]), only_marked=True),
    "environment server": lambda: description_of(ServerSettings(environment_id=ID, token="12345678")),
    "tool": PythonTool,
    "tool with limits": lambda: PythonTool(isolation="limits"),
    "sandbox": lambda: run_python("1"),
    "sandbox with limits": lambda: run_python("1", isolation="limits"),
}
def outcome(attempt):
    try:
        attempt()
        return {}
    except TinkerGymError as error:
        return error.to_wire()

notices = {one: isolation_notice(one).to_json() for one in ("namespaces", "limits", "off")}
found = {"outside": PythonTool().isolation, "notice": notices}
quick = ("seat", "environment worker", "seat of a worker", "environment server", "tool", "sandbox")
for setting, tried in {"namespaces": places, "off": quick, "limits": quick}.items():
    require(setting)
    found[setting] = {name: outcome(places[name]) for name in tried}
found["code"] = PythonTool().call({"code": "6 * 7"})
json.dump(found, sys.stdout)
"""
AT_RUN = ("sandbox", "sandbox with limits")


@pytest.fixture(scope="module")
def found():
    ran = subprocess.run(
        [sys.executable, "-m", "tests.without_namespaces", "-c", TRIES],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_refuses_every_way_to_python_without_namespaces(found):
    kinds = {name: error.get("type") for name, error in found["namespaces"].items()}
    assert kinds == {
        name: "EnvironmentInfrastructureError" if name in AT_RUN else "InvalidToolError" for name in kinds
    }
    assert all("--set python_tool=limits" in error["hint"] for error in found["namespaces"].values())


def test_names_the_field_of_what_was_refused(found):
    fields = {name: found["namespaces"][name]["field"] for name in ("seat", "pack", "evaluation of a job")}
    assert fields == {
        "seat": "agents.o.tools",
        "pack": "environment",
        "evaluation of a job": "evaluate",
    }


def test_refuses_python_that_the_operator_switched_off(found):
    assert all(found["off"].values())


def test_runs_python_with_limits_if_the_operator_accepts_them(found):
    assert not any(found["limits"].values())
    assert (found["code"], found["outside"]) == ("42", "limits")


def test_tells_the_operator_what_the_machine_offers(found):
    told = {setting: (one["event"], one["isolation"]) for setting, one in found["notice"].items()}
    assert told == {
        "namespaces": ("python_tool", "none"),
        "limits": ("python_tool", "limits"),
        "off": ("python_tool", "off"),
    }
    assert found["notice"]["namespaces"]["reason"]
