import importlib
import logging
import sys

import gymnasium as gym
import numpy as np
import pytest

import tinkergym as tg
from tinkergym import registration
from tinkergym.bridges import pettingzoo_classic
from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError, UnknownEnvironmentError
from tinkergym.wire import EnvironmentRef


class Question(tg.SingleTurnEnv):
    def __init__(self, level=1):
        if level > 9:
            raise RuntimeError("there is no such level")
        self.level = level

    def ask(self, options):
        return f"level {self.level}"

    def score(self, answer):
        return 0.0


class Other(Question):
    pass


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install packs that are real distributions on `sys.path`, and forget them afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    registration.load_packs()  # the others, whose environments are to stay
    known = set(gym.registry)

    def pack(name, source, target=":register"):
        (tmp_path / f"{name}_module.py").write_text(source)
        info = tmp_path / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[tinkergym.envs]\n{name} = {name}_module{target}\n")
        importlib.invalidate_caches()

    yield pack
    for module in [module for module in sys.modules if module.endswith("_module")]:
        del sys.modules[module]
    for environment_id in set(gym.registry) - known:
        del gym.registry[environment_id]


GOOD = """
import gymnasium, tinkergym
class Env(tinkergym.SingleTurnEnv):
    def ask(self, options): return "?"
    def score(self, answer): return 1.0
def register():
    gymnasium.register("{name}/Env-v0", "{name}_module:Env")
"""


def test_a_pack_is_loaded_by_its_entry_point_once(install):
    install("goodpack", GOOD.format(name="goodpack"))
    env = tg.make("goodpack/Env-v0")
    assert env.reset(seed=0)[0] == "?"
    first = [pack for pack in tg.load_packs() if pack.name == "goodpack"]
    assert first == [pack for pack in tg.load_packs() if pack.name == "goodpack"]
    assert (first[0].distribution, first[0].version, first[0].error) == ("goodpack", "1.2", "")
    assert first[0].environment_ids == ("goodpack/Env-v0",)
    assert "goodpack/Env-v0" in tg.registered()
    assert registration.pack_of("goodpack/Env-v0") == first[0]


def test_a_pack_that_was_installed_editable_after_this_process_began_is_found(install, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    install("latepack", GOOD.format(name="latepack"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "latepack_module.py").rename(elsewhere / "latepack_module.py")
    (tmp_path / "latepack.pth").write_text(f"{elsewhere}\n")
    importlib.invalidate_caches()
    assert tg.make("latepack/Env-v0").reset(seed=0)[0] == "?"


def test_a_module_that_registers_when_imported_is_a_pack_too(install):
    install("modulepack", GOOD.format(name="modulepack") + "register()\n", target="")
    assert tg.make("modulepack/Env-v0").reset(seed=0)[0] == "?"


@pytest.mark.parametrize(
    "source", ["import nothing_of_this_name", "def register(): raise SystemExit(3)", "def other(): pass"]
)
def test_a_broken_pack_is_reported_and_harms_no_other(install, caplog, source):
    install("apack", source)
    good = f"zpack{len(source)}"
    install(good, GOOD.format(name=good))
    with caplog.at_level(logging.WARNING):
        packs = {pack.name: pack for pack in tg.load_packs()}
    assert "apack" in caplog.text
    assert "Traceback" in packs["apack"].error
    assert packs[good].error == ""
    assert tg.make(f"{good}/Env-v0").reset(seed=0)[0] == "?"
    with pytest.raises(UnknownEnvironmentError, match="the pack 'apack' is broken"):
        tg.make("apack/Env-v0")


HALF = (
    GOOD
    + """
class Rules(tinkergym.TextGame):
    pass
def register():
    tinkergym.register("{name}/Env-v0", Env)
    tinkergym.register_game("{name}/Game-v0", Rules)
    import nothing_of_this_name
"""
)


def test_a_pack_that_fails_at_its_end_leaves_nothing_behind_and_its_traceback_is_logged_once(install, caplog):
    install("halfpack", HALF.format(name="halfpack"))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with pytest.raises(UnknownEnvironmentError, match="the pack 'halfpack' is broken"):
                tg.make("halfpack/Env-v0")
        with pytest.raises(UnknownEnvironmentError, match="no game is called"):
            tg.make_game("halfpack/Game-v0")
    assert caplog.text.count("Traceback") == 1
    assert not [name for name in [*gym.registry, *tg.registered()] if name.startswith("halfpack")]
    assert next(pack for pack in tg.load_packs() if pack.name == "halfpack").environment_ids == ()


def test_a_pack_that_failed_is_whole_when_it_is_repaired(install, tmp_path):
    install("twopack", "import twopack_module.first, nothing_of_this_name", target="")
    (tmp_path / "twopack_module.py").unlink()
    package = tmp_path / "twopack_module"
    package.mkdir()
    (package / "first.py").write_text(GOOD.format(name="twopack") + "register()\n")
    (package / "__init__.py").write_text("from . import first\nimport nothing_of_this_name")
    with pytest.raises(UnknownEnvironmentError, match="the pack 'twopack' is broken"):
        tg.make("twopack/Env-v0")
    (package / "__init__.py").write_text("from . import first\n")
    importlib.invalidate_caches()
    assert "twopack/Env-v0" in tg.registered()


def test_an_unknown_id_is_refused_with_the_ids_that_look_like_it():
    tg.register("tests/Question-v0", Question)
    with pytest.raises(UnknownEnvironmentError, match="did you mean tests/Question-v0"):
        tg.make("tests/Questoin-v0")


def test_registering_again_changes_nothing_and_another_class_is_refused():
    tg.register("tests/Again-v0", Question, kwargs={"level": 3})
    tg.register("tests/Again-v0", Question, kwargs={"level": 3})
    assert tg.make("tests/Again-v0").reset(seed=0)[0] == "level 3"
    assert gym.make("tests/Again-v0").reset(seed=0)[0] == "level 3"
    with pytest.raises(InvalidRequestError, match="already registered"):
        tg.register("tests/Again-v0", Other)


def test_a_class_defined_anew_replaces_its_predecessor():
    def cell(text):
        class Edited(Question):
            def ask(self, options):
                return text

        tg.register("tests/Edited-v0", Edited)

    cell("old")
    cell("new")
    assert tg.make("tests/Edited-v0").reset(seed=0)[0] == "new"


def test_a_failing_constructor_is_named_and_chained():
    tg.register("tests/Levels-v0", Question)
    with pytest.raises(InvalidEnvironmentError, match="there is no such level") as caught:
        tg.make("tests/Levels-v0", level=10)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(InvalidEnvironmentError, match="colour"):
        tg.make("tests/Levels-v0", colour="red")


def test_an_environment_is_made_from_a_jobs_reference():
    tg.register("tests/Referenced-v0", Question)
    env = registration.make_environment(EnvironmentRef(id="tests/Referenced-v0", kwargs={"level": 4}))
    assert env.reset(seed=0)[0] == "level 4"


def test_a_hand_written_environment_needs_none_of_our_classes():
    class Plain(gym.Env):
        observation_space = gym.spaces.Text(10)
        action_space = gym.spaces.Text(10)

        def reset(self, *, seed=None, options=None):
            return "hi", {}

    tg.register("tests/Plain-v0", Plain)
    assert tg.make("tests/Plain-v0").reset() == ("hi", {})


NO_JSON = {
    "a data set": tg.SequenceTasks([{"question": "?"}]),
    "an array": np.arange(3),
    "a set in a list": [{1}],
    "a function": len,
    "not a number": float("nan"),
    "a key that is no string": {1: 2},
    "a number of numpy's": np.int64(3),
}


@pytest.mark.parametrize("value", NO_JSON.values(), ids=NO_JSON)
def test_an_argument_that_could_not_travel_with_a_job_is_refused(value):
    tg.register("tests/Arguments-v0", Question)
    with pytest.raises(InvalidRequestError, match="travel with a job as JSON") as made:
        tg.make("tests/Arguments-v0", level=value)
    assert made.value.field == "kwargs.level"
    with pytest.raises(InvalidRequestError, match="travel with a job as JSON"):
        tg.register("tests/Refused-v0", Question, kwargs={"level": value})
    assert "tests/Refused-v0" not in gym.registry


def test_a_data_set_as_an_argument_is_to_be_named_instead():
    tg.register("tests/Arguments-v0", Question)
    with pytest.raises(InvalidRequestError, match="name the data instead"):
        tg.make("tests/Arguments-v0", level=NO_JSON["a data set"])


def test_json_arguments_are_accepted_and_kept():
    tg.register("tests/Levels-v0", Question)
    env = tg.make("tests/Levels-v0", level=2.5)
    assert (env.spec.kwargs, env.reset(seed=0)[0]) == ({"level": 2.5}, "level 2.5")


def test_a_pack_that_a_script_imported_before_is_known_with_its_version(install):
    install("earlypack", GOOD.format(name="earlypack") + "register()\n", target="")
    importlib.import_module("earlypack_module")
    assert gym.make("earlypack/Env-v0", disable_env_checker=True).reset(seed=0)[0] == "?"
    assert registration.pack_of("earlypack/Env-v0").version == "1.2"


@pytest.mark.parametrize("make", [tg.make, tg.make_game])
def test_an_environment_that_lacks_a_package_names_the_extra_that_brings_it(monkeypatch, make):
    monkeypatch.setitem(pettingzoo_classic._GAMES, "pettingzoo/Faro-v0", (tg.TextGame, ("no_such_package",)))
    monkeypatch.setattr(registration, "_missing", {})
    pettingzoo_classic.register()
    env_id = "pettingzoo/FaroVs-v0" if make is tg.make else "pettingzoo/Faro-v0"
    with pytest.raises(UnknownEnvironmentError, match=r"needs no_such_package.*\.\[pettingzoo\]"):
        make(env_id)
