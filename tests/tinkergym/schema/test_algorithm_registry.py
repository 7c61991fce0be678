"""Algorithms of installed packs: found by name, checked by their own class, and missed without harm."""

import pytest

from tests.tinkergym.algorithms.installed import RANKS, install, ranks, site
from tinkergym import algorithms
from tinkergym.errors import InvalidRequestError
from tinkergym.schema import algorithm_registry
from tinkergym.schema.jobs.spec import stored_spec
from tinkergym.schema.parsing import parse_spec
from tinkergym.trajectory.outcomes import StepOutcomes

__all__ = ["ranks", "site"]

GOOD = {"environment": {"id": "board/TicTacToeVs-v0"}, "steps": 3}
OWN = {**GOOD, "algorithm": {"name": "ranks", "failure_weight": 0.25, "learning_rate": 0.5}}


def refusal(settings):
    with pytest.raises(InvalidRequestError) as refused:
        parse_spec(settings)
    return refused.value


def test_checks_settings_with_the_packs_own_class(ranks):
    algorithm = parse_spec(OWN).algorithm
    assert (type(algorithm).__name__, algorithm.failure_weight, algorithm.learning_rate) == (
        "Ranks",
        0.25,
        0.5,
    )
    assert algorithm.compares_siblings
    for setting, value in {"failure_weight": 2.0, "fail_weight": 0.5, "clip_low": 0.1}.items():
        found = refusal({**GOOD, "algorithm": {"name": "ranks", setting: value}})
        assert found.field == f"algorithm.{setting}"
    assert (
        "algorithm.failure_weight"
        in refusal({**GOOD, "algorithm": {"name": "ranks", "failure_weigth": 1}}).hint
    )


def test_sends_all_settings_of_a_packs_class(ranks):
    spec = parse_spec(OWN)
    assert stored_spec(spec.model_dump_json()) == spec
    assert parse_spec({**GOOD, "algorithm": spec.algorithm}) == spec
    seats = {"x": {"kind": "train", "algorithm": OWN["algorithm"]}, "o": {"kind": "train"}}
    game = {"environment": {"id": "board/TicTacToe-v0"}, "steps": 3, "agents": seats}
    assert parse_spec(game).for_agent("x").algorithm.failure_weight == 0.25


def test_refuses_an_unknown_name_with_the_known_ones(ranks):
    found = refusal({**GOOD, "algorithm": {"name": "no-such"}})
    assert found.field == "algorithm.name"
    assert all(name in found.message for name in ("'grpo'", "'reinforce++'", "'ranks'"))
    assert found.hint == algorithm_registry.INSTALL_PACK
    assert "'ranks'" in refusal({**GOOD, "algorithm": {"name": "rank"}}).hint


@pytest.mark.parametrize(
    ("code", "points"),
    [
        ("raise RuntimeError('no licence')", ["broken = bad_pack:Broken"]),
        ("raise SystemExit(3)", ["broken = bad_pack:Broken"]),
        ("", ["broken = bad_pack:Broken"]),
        ("Broken = 3", ["broken = bad_pack:Broken"]),
        ("from tinkergym.algorithms import GRPO as Broken", ["broken = bad_pack:Broken"]),
    ],
)
def test_names_the_pack_that_is_broken_and_uses_others(ranks, code, points):
    install(ranks, "bad_pack", code, points)
    found = refusal({**GOOD, "algorithm": {"name": "broken"}})
    assert found.field == "algorithm.name"
    assert "bad_pack 0.1" in found.message
    assert parse_spec(OWN).algorithm.name == "ranks"


def test_refuses_a_name_that_two_packs_claim(ranks):
    install(ranks, "other_pack", RANKS, ["ranks = other_pack:Ranks"])
    found = refusal(OWN)
    assert found.field == "algorithm.name"
    assert "other_pack 0.1" in found.message and "tinkergym_ranks 0.1" in found.message


def test_keeps_the_built_in_algorithm_of_a_name(ranks):
    install(ranks, "other_pack", RANKS, ["grpo = other_pack:Ranks"])
    assert type(parse_spec(GOOD).algorithm).__module__ == "tinkergym.algorithms.grpo"


def test_finds_a_file_added_to_the_folder(site, monkeypatch):
    (site / "ranks_of_the_folder.py").write_text(RANKS)
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(site)])
    built_in = dict(algorithm_registry._built_in())
    assert built_in.keys() == {*algorithm_registry.BUILT_IN, "ranks"}
    monkeypatch.setattr(algorithm_registry, "BUILT_IN", built_in)
    assert algorithms.Ranks is built_in["ranks"]


def test_shows_a_stored_job_without_its_pack(ranks):
    written = parse_spec(OWN).model_dump_json()
    algorithm_registry.forget_packs()
    (ranks / "tinkergym_ranks-0.1.dist-info" / "entry_points.txt").unlink()
    missing = stored_spec(written)
    assert missing.algorithm.failure_weight == 0.25
    assert missing.algorithm.learning_rate == 0.5
    assert missing.model_dump_json() == written
    with pytest.raises(InvalidRequestError) as refused:
        missing.algorithm.credits(StepOutcomes([]))
    assert refused.value.field == "algorithm.name"
    assert refusal(OWN).field == "algorithm.name"
