"""The door to AndroidWorld, with a counterpart of the package: fake modules of its names, on fake ports."""

import socket
import sys
import threading

import pytest

from tinkergym.errors import EnvironmentBusyError, EnvironmentInfrastructureError, InvalidRequestError
from tinkergym.registration.environments import make

REAL = "androidworld/AndroidWorld-v0"
DONE = '{"action_type": "status", "goal_status": "complete"}'

PACKAGE = {
    "__init__.py": '"""A counterpart of android_world: fake."""\n',
    "registry.py": """
import random


class FakeTurnOn:
    complexity = 1.0
    start_on_home_screen = True
    goal = "On the fake phone, turn Wi-Fi on."

    def __init__(self, params):
        self.params = params

    @classmethod
    def set_device_time(cls, env):
        assert env is not None

    @classmethod
    def generate_random_params(cls):
        return {"drawn": random.random()}

    def initialize_task(self, env):
        env.switches["Wi-Fi"] = False

    def is_successful(self, env):
        return float(env.switches["Wi-Fi"])

    def tear_down(self, env):
        env.torn_down = self.params


class TaskRegistry:
    def get_registry(self, family):
        if family != "android_world":
            raise ValueError(f"Unsupported family: {family}")
        return {"FakeTurnOn": FakeTurnOn}
""",
    "env/__init__.py": "",
    "env/json_action.py": """
from tinkergym_androidworld.fake_device import FakeAction


def JSONAction(**fields):
    return FakeAction(**fields)
""",
    "env/env_launcher.py": """
from tinkergym_androidworld.fake_device import FakeDevice


class Device(FakeDevice):
    torn_down = None
    closed = False
    broken = False

    def get_state(self, wait_to_stabilize=False):
        if self.broken:
            raise OSError("offline (fake)")
        return super().get_state(wait_to_stabilize)

    def close(self):
        self.closed = True


connected, refuse = [], False


def load_and_setup_env(*, console_port, grpc_port, emulator_setup, adb_path="adb"):
    if refuse:
        raise RuntimeError("no adb (fake)")
    connected.append((console_port, grpc_port, adb_path, Device()))
    return connected[-1][3]
""",
}


@pytest.fixture
def listening():
    """Listen on the ports of a free emulator; yields its console port."""
    for console in range(5600, 5680, 2):
        try:
            sockets = [socket.create_server(("127.0.0.1", port)) for port in (console, console + 3000)]
        except OSError:
            continue
        yield console
        for one in sockets:
            one.close()
        return
    pytest.skip("no pair of ports is free")


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    for name, text in PACKAGE.items():
        path = tmp_path / "android_world" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("tinkergym_androidworld.emulator._lines", {})
    before = set(sys.modules)
    import android_world.env.env_launcher as launcher

    yield launcher
    for name in set(sys.modules) - before:
        if name.startswith("android_world"):
            del sys.modules[name]


def test_says_in_one_sentence_that_package_is_missing():
    if "android_world" in sys.modules:
        pytest.skip("it is installed here")
    with pytest.raises(InvalidRequestError) as error:
        make(REAL)
    assert error.value.field == "environment"


@pytest.mark.usefixtures("launcher")
def test_says_in_one_sentence_that_emulator_is_missing():
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 5682)) == 0:
            pytest.skip("something listens there")
    with pytest.raises(InvalidRequestError) as error:
        make(REAL, console_port=5682)
    assert error.value.field == "console_port"


@pytest.mark.usefixtures("launcher")
def test_reaches_an_emulator_by_one_grpc_port_only(listening, monkeypatch):
    monkeypatch.setattr("tinkergym_androidworld.emulator._responds", lambda port: True)
    make(REAL, console_port=listening)
    with pytest.raises(InvalidRequestError) as error:
        make(REAL, console_port=listening, grpc_port=listening + 3001)
    assert error.value.field == "grpc_port"


@pytest.mark.usefixtures("launcher")
@pytest.mark.parametrize(
    "ports", [{"console_port": 22}, {"console_port": 5555}, {"grpc_port": 22}, {"grpc_port": 8684}]
)
def test_tries_only_ports_of_emulators(listening, ports):
    with pytest.raises(InvalidRequestError) as error:
        make(REAL, **({"console_port": listening} | ports))
    assert error.value.field in ports


@pytest.mark.usefixtures("launcher")
def test_rejects_unknown_family(listening):
    with pytest.raises(InvalidRequestError) as error:
        make(REAL, console_port=listening, family="ios")
    assert error.value.field == "family"


def test_sets_up_judges_and_tears_down_task_on_one_connection(launcher, listening, monkeypatch):
    monkeypatch.setenv("TINKERGYM_ADB_PATH", "/fake/adb")
    env = make(REAL, console_port=listening)
    returns = []
    for _ in range(2):
        env.reset(options={"task_index": 0})
        ((console, grpc, adb, device),) = launcher.connected
        env.step('{"action_type": "open_app", "app_name": "Settings"}')
        env.step('{"action_type": "click", "index": 1}')
        returns.append(env.step(DONE)[1])
    assert returns == [1.0, 1.0]
    assert (console, grpc, adb) == (listening, listening + 3000, "/fake/adb")
    first = device.torn_down
    assert first["seed"] == env.unwrapped.tasks[0]["seed"]
    env.reset(options={"task_index": 0})
    env.close()
    assert device.torn_down == first


def test_reconnects_after_a_broken_connection(launcher, listening):
    env = make(REAL, console_port=listening)
    env.reset(seed=0)
    launcher.connected[0][3].broken = True
    with pytest.raises(EnvironmentInfrastructureError):
        env.step('{"action_type": "wait"}')
    assert launcher.connected[0][3].closed
    env.reset(seed=0)
    assert len(launcher.connected) == 2
    env.close()
    launcher.connected[1][3].broken = True
    with pytest.raises(EnvironmentInfrastructureError):
        env.reset(seed=0)
    launcher.refuse = True
    with pytest.raises(EnvironmentInfrastructureError):
        env.reset(seed=0)


@pytest.mark.usefixtures("launcher")
def test_takes_turns_between_environments_of_one_emulator(listening):
    one, other = make(REAL, console_port=listening), make(REAL, console_port=listening, wait_seconds=0.01)
    one.reset(seed=0)
    with pytest.raises(EnvironmentBusyError):
        other.reset(seed=0)
    patient = make(REAL, console_port=listening)
    begun = threading.Thread(target=patient.reset, kwargs={"seed": 0})
    begun.start()
    one.step(DONE)
    begun.join(120)
    assert not begun.is_alive()
    patient.close()
    other.reset(seed=0)
    other.close()


@pytest.mark.usefixtures("launcher")
def test_rejects_another_process(listening, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    one = make(REAL, console_port=listening)
    one.reset(seed=0)
    one.close()
    # Another open file stands for the other process: locks of one process do exclude each other here.
    monkeypatch.setattr("tinkergym_androidworld.emulator._lines", {})
    assert fcntl
    with pytest.raises(EnvironmentBusyError):
        make(REAL, console_port=listening).reset(seed=0)
