"""Packs as real distributions on `sys.path`: whose ids count, when they are imported, what they may break."""

import importlib
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import pytest

import tinkergym as tg
from tests.tinkergym.registration.coins import Coins
from tests.tinkergym.registration.installed import GOOD, fresh
from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError, UnknownEnvironmentError
from tinkergym.registration.environments import make_environment, pack_of
from tinkergym.registration.packs import find_packs
from tinkergym.schema.jobs.parts import EnvironmentRef


def found(distribution):
    return next(pack for pack in find_packs() if pack.distribution == distribution)


def test_imports_only_used_pack_though_gymnasium_knows_all_ids(install, tmp_path):
    one = install("tinkergym-one", "one/Env-v0 = MODULE:Env")
    two = install("two", "two/Env-v0 = MODULE:Env")
    code = f"""
import gymnasium, tinkergym
assert {{"one/Env-v0", "two/Env-v0", "board/TicTacToeVs-v0"}} <= set(gymnasium.registry)
assert not {{{one!r}, {two!r}, "tinkergym_board"}} & set(sys.modules)
assert gymnasium.make("one/Env-v0").reset(seed=0)[0] == "{one} 1"
assert tinkergym.make("board/TicTacToeVs-v0").reset(seed=0)
assert {one!r} in sys.modules and {two!r} not in sys.modules
assert "tinkergym_textarena" not in sys.modules
"""
    fresh(code, tmp_path)


def test_says_ids_version_and_namespace_of_a_pack(install):
    install("tinkergym-my.Maze", "my-maze/Env-v0 = MODULE:Env", games="my-maze/Nim-v0 = MODULE:Nim")
    pack = found("tinkergym-my.Maze")
    assert (pack.name, pack.version, pack.refused) == ("my-maze", "1.2", ())
    assert (pack.environment_ids, pack.game_ids) == (("my-maze/Env-v0",), ("my-maze/Nim-v0",))
    assert pack_of("my-maze/Env-v0") == pack
    assert "my-maze/Env-v0" in tg.registration.registered()


def test_calls_factory_with_arguments_and_its_own_defaults(install):
    module = install(
        "tinkergym-levels",
        "levels/Easy-v0 = MODULE:Env\nlevels/Hard-v0 = MODULE:hard",
        games="levels/Nim-v0 = MODULE:Nim\nlevels/LongNim-v0 = MODULE:long_nim",
    )
    assert tg.make("levels/Hard-v0").reset(seed=0)[0] == f"{module} 9"
    assert gym.make("levels/Hard-v0", level=4).reset(seed=0)[0] == f"{module} 4"
    assert json.loads(tg.make("levels/Hard-v0", level=4).spec.to_json())["kwargs"] == {"level": 4}
    assert tg.make_game("levels/LongNim-v0").game.stones == 20
    assert tg.make_game("levels/LongNim-v0", stones=5, on_illegal="retry:2").on_illegal == "retry:2"


@pytest.mark.parametrize("group", ["envs", "games"])
@pytest.mark.parametrize(
    ("distribution", "claim", "owner"),
    [
        ("tinkergym-evil", "board/TicTacToe-v0", "tinkergym-board"),
        ("tinkergym-evil", "board/TicTacToeVs-v0", "tinkergym-board"),
        ("tinkergym-evil", "Board/New-v0", "tinkergym-board"),
        ("board", "board/New-v0", "tinkergym-board"),
        ("evil", "tinkergym/Remote-v0", "tinkergym"),
        ("tinkergym-tinkergym", "tinkergym/Remote-v0", "tinkergym"),
        ("tinkergym-pettingzoo", "pettingzoo/New-v0", "tinkergym"),
        ("evil", "elsewhere/New-v0", "tinkergym-elsewhere"),
    ],
)
def test_rejects_claim_outside_its_namespace_naming_both(install, group, distribution, claim, owner):
    before = gym.registry.get(claim)
    point = f"{claim} = MODULE:Env"
    install(distribution, point if group == "envs" else "", games=point if group == "games" else "")
    pack = found(distribution)
    assert (pack.environment_ids, pack.game_ids) == ((), ())
    (refusal,) = pack.refused
    assert claim in refusal
    assert {distribution, owner} <= set(refusal.replace(".", " ").split())
    assert gym.registry.get(claim) is before


def test_says_that_an_id_was_refused_when_it_is_made(install):
    install("evil", "board/New-v0 = MODULE:Env")
    with pytest.raises(UnknownEnvironmentError):
        tg.make("board/New-v0")


def test_denies_pack_a_foreign_id_that_it_registers_on_import(install):
    source = (
        GOOD.format(module="x")
        + """
import gymnasium
gymnasium.register("board/TicTacToeVs-v0", Env)
"""
    )
    install("tinkergym-sly", "sly/Env-v0 = MODULE:Env", source)
    with pytest.warns(UserWarning, match="Overriding"):
        tg.make("sly/Env-v0")
    assert "X" in tg.make("board/TicTacToeVs-v0").reset(seed=0)[0] + "X"
    assert gym.registry["board/TicTacToeVs-v0"].entry_point == "tinkergym_board.versus:tictactoe"


@pytest.mark.parametrize(
    "point",
    [
        "no_namespace-v0 = MODULE:Env",
        "odd/Env = MODULE:Env",
        "odd/Env-v0 = MODULE",
        "odd/Env-v0",
        "= x",
        "odd/A b-v0 = MODULE:Env",
        "odd/Env-v0 = MODULE:",
        "odd/Env-v0 = :Env",
        "odd/Env-v0 = a b",
        "odd/Env-v00 = MODULE:Env",
        "odd/Env-v٣ = MODULE:Env",
        "odd/module:Env-v0 = MODULE:Env",
        "odd/\x1b[2J-v0 = MODULE:Env",
        "odd/Env-v0 = MODULE:\x1b[2J",
        f"odd/{'x' * 200}-v0 = MODULE:Env",
        f"odd/Env-v{'1' * 5000} = MODULE:Env",
        f"odd/Env-v0 = {'x' * 501}:Env",
    ],
)
def test_rejects_malformed_entry_point_and_counts_its_neighbours(install, point):
    install("tinkergym-odd", f"{point}\nodd/Fine-v0 = MODULE:Env")
    pack = found("tinkergym-odd")
    assert pack.environment_ids == ("odd/Fine-v0",)
    (refusal,) = pack.refused
    assert refusal.isprintable()
    assert len(refusal) < 500
    assert tg.make("odd/Fine-v0").reset(seed=0)


@pytest.mark.parametrize(
    "source",
    [
        "import nothing_of_this_name",
        "raise SystemExit(3)",
        "class Odd(BaseException):\n    def __str__(self): raise OSError\nraise Odd",
        "1 / 0",
        "def other(): pass",
        "Env = 3",
        "x = (",
    ],
)
def test_names_broken_pack_and_keeps_the_others(install, source):
    install("tinkergym-broken", "broken/Env-v0 = MODULE:Env", source, games="broken/Nim-v0 = MODULE:Env")
    install("tinkergym-sound", "sound/Env-v0 = MODULE:Env")
    assert {"broken/Env-v0", "sound/Env-v0"} <= set(tg.registration.registered())
    for make, name in ((tg.make, "broken/Env-v0"), (tg.make_game, "broken/Nim-v0")):
        with pytest.raises(InvalidEnvironmentError) as caught:
            make(name)
        assert caught.value.field == "environment"
    assert tg.make("sound/Env-v0").reset(seed=0)


@pytest.mark.parametrize("error", ["SystemExit", "GeneratorExit", "KeyError", "TypeError"])
def test_names_environment_whose_constructor_raises(install, error):
    source = f"def Env(): raise {error}('\\x1b[2J')"
    install("tinkergym-raises", "raises/Env-v0 = MODULE:Env", source, games="raises/Game-v0 = MODULE:Env")
    for make, name in ((tg.make, "raises/Env-v0"), (tg.make_game, "raises/Game-v0")):
        with pytest.raises(InvalidEnvironmentError) as caught:
            make(name)
        assert caught.value.field == "environment"
        assert caught.value.message.isprintable()


def test_ends_import_of_a_pack_at_ctrl_c(install):
    install("tinkergym-slow", "slow/Env-v0 = MODULE:Env", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        tg.make("slow/Env-v0")
    with ThreadPoolExecutor(1) as thread, pytest.raises(InvalidEnvironmentError) as caught:
        thread.submit(tg.make, "slow/Env-v0").result()
    assert caught.value.field == "environment"


def test_names_settings_that_a_factory_does_not_take(install):
    install("tinkergym-few", "few/Env-v0 = MODULE:hard", games="few/Nim-v0 = MODULE:long_nim")
    with pytest.raises(InvalidEnvironmentError) as caught:
        tg.make_game("few/Nim-v0", stnes=4)
    assert caught.value.field == "environment"
    with pytest.raises(InvalidRequestError) as caught:
        make_environment(EnvironmentRef(id="few/Env-v0", kwargs={"id": "other"}))
    assert caught.value.field == "environment.kwargs.id"


@pytest.mark.parametrize("players", ["0", "-1", "10**12", "'ab'", "None", "1.5"])
def test_rejects_game_with_impossible_number_of_players_when_made(install, players):
    source = f"import tinkergym\nclass Game(tinkergym.TextGame):\n    players = {players}"
    install("tinkergym-crowd", "", source, games="crowd/Game-v0 = MODULE:Game")
    with pytest.raises(InvalidEnvironmentError) as caught:
        tg.make_game("crowd/Game-v0")
    assert caught.value.field == "environment"


def test_hides_only_the_id_a_script_registered(install):
    install("tinkergym-shared", "shared/Env-v0 = MODULE:Env\nshared/Other-v0 = MODULE:Env")
    gym.register("shared/Env", "elsewhere:Env")
    try:
        assert tg.make("shared/Other-v0").reset(seed=0)
    finally:
        del gym.registry["shared/Env"]


def test_changes_no_foreign_id_in_packs_imported_by_two_threads(install, monkeypatch):
    source = """
import gymnasium, threading, tinkergym
def Env(): return tinkergym.make("bandit/Bandit-v0")
def change():
    gymnasium.registry["board/GomokuVs-v0"] = gymnasium.spec("bandit/Bandit-v0")
threading.meet("{name}", change)
"""
    changed, first_is_made = threading.Event(), threading.Event()

    def meet(name, change):
        # The second pack's import begins when the first has changed the id, and ends after the first's.
        if name == "first":
            change()
            changed.set()
            assert second_began.wait(60.0)
        else:
            second_began.set()
            assert first_is_made.wait(60.0)

    second_began = threading.Event()
    monkeypatch.setattr(threading, "meet", meet, raising=False)
    install("tinkergym-first", "first/Env-v0 = MODULE:Env", source.replace("{name}", "first"))
    install("tinkergym-second", "second/Env-v0 = MODULE:Env", source.replace("{name}", "second"))
    tg.registration.registered()
    gomoku = gym.registry["board/GomokuVs-v0"]
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(tg.make, "first/Env-v0")
        assert changed.wait(60.0)
        second = threads.submit(tg.make, "second/Env-v0")
        assert first.result(120)
        first_is_made.set()
        assert second.result(120)
    assert gym.registry["board/GomokuVs-v0"] is gomoku


def test_hides_only_distribution_whose_metadata_cannot_be_read(install, tmp_path):
    install("tinkergym-sound", "sound/Env-v0 = MODULE:Env")
    (tmp_path / "bad-1.0.dist-info").mkdir()
    (tmp_path / "bad-1.0.dist-info" / "entry_points.txt").write_bytes(b"[tinkergym.envs]\n\xff\xfe = x:y\n")
    nameless = tmp_path / "nameless-1.0.dist-info"
    nameless.mkdir()
    (nameless / "METADATA").write_text("Metadata-Version: 2.1\n")
    (nameless / "entry_points.txt").write_text("[tinkergym.envs]\nsound/Env-v0 = evil:Env\n")
    importlib.invalidate_caches()
    assert found("tinkergym-sound").environment_ids == ("sound/Env-v0",)
    assert tg.make("sound/Env-v0").reset(seed=0)


def test_keeps_script_from_replacing_an_installed_pack(install):
    install("tinkergym-firm", "firm/Env-v0 = MODULE:Env", games="firm/Nim-v0 = MODULE:Nim")
    find_packs()

    class Other(tg.SingleTurnEnv):
        pass

    class OtherGame(tg.TextGame):
        pass

    with pytest.raises(InvalidRequestError) as caught:
        tg.register("firm/Env-v0", Other)
    assert caught.value.field == "id"
    with pytest.raises(InvalidRequestError) as caught:
        tg.register_game("firm/Nim-v0", OtherGame)
    assert caught.value.field == "id"


def test_notices_pack_installed_or_removed_while_the_process_runs(install, tmp_path):
    install("tinkergym-late", "late/Env-v0 = MODULE:Env")
    assert tg.make("late/Env-v0").reset(seed=0)
    (tmp_path / "tinkergym_late-1.2.dist-info" / "entry_points.txt").unlink()
    assert "late/Env-v0" not in tg.registration.registered()
    with pytest.raises(UnknownEnvironmentError):
        tg.make("late/Env-v0")


def test_finds_pack_installed_editable_after_the_process_began(install, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    module = install("latepack", "latepack/Env-v0 = MODULE:Env")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"{module}.py").rename(elsewhere / f"{module}.py")
    (tmp_path / "latepack.pth").write_text(f"{elsewhere}\n")
    importlib.invalidate_caches()
    assert tg.make("latepack/Env-v0").reset(seed=0)[0] == f"{module} 1"


@pytest.mark.parametrize("make", [tg.make, tg.make_game])
def test_names_extra_that_brings_an_environments_missing_package(monkeypatch, make):
    monkeypatch.setitem(sys.modules, "pettingzoo.classic.rlcard_envs.leduc_holdem", None)
    env_id = "pettingzoo/LeducHoldemVs-v0" if make is tg.make else "pettingzoo/LeducHoldem-v0"
    with pytest.raises(InvalidRequestError) as caught:
        make(env_id).reset(seed=0)
    assert caught.value.field == "environment"


def test_lists_registered_opponents_with_the_first_as_default():
    tg.register_game("test/Greedy-v0", Coins, opponents=("greedy",))
    assert tg.make("test/GreedyVs-v0").spec.kwargs["opponent"] == "greedy"
    with pytest.raises(InvalidRequestError) as caught:
        tg.make("test/GreedyVs-v0", opponent="random")
    assert caught.value.field == "opponent"


def test_suggests_what_is_close_for_unknown_game():
    tg.register_game("test/Greedy-v0", Coins, opponents=("greedy",))
    with pytest.raises(UnknownEnvironmentError):
        tg.make_game("test/Gredy-v0")


def test_plays_reinstalled_pack_as_it_is_now(install, tmp_path):
    points = "again/Env-v0 = MODULE:Env"
    module = install("tinkergym-again", points)
    record = tmp_path / "tinkergym_again-1.2.dist-info" / "RECORD"
    record.write_text("")
    find_packs()
    before = tg.make("again/Env-v0")
    assert before.reset(seed=0)[0] == f"{module} 1"
    install("tinkergym-again", points, GOOD.replace("level=1", "level=22").format(module=module))
    assert tg.make("again/Env-v0").reset(seed=0)[0] == f"{module} 1"  # not all of it is written yet
    os.utime(record, ns=(1, 1))
    assert tg.make("again/Env-v0").reset(seed=0)[0] == f"{module} 22"
    assert before.reset(seed=0)[0] == f"{module} 1"
