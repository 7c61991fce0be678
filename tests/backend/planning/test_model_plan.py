"""The plan: 200 cases as data, waiting models, and what holds for all nodes and wishes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.planning.machines import NotPlaced, Placed
from backend.planning.memory_needs import usable_bytes, waiting_bytes
from backend.planning.model_plan import plan
from tests.backend.planning.shapes import GB, SHAPES, machine, machines, shown, wish

CASES = (Path(__file__).parent / "plan_cases.txt").read_text().split("\n\n")[1:]


def placement_of(words):
    placement = {}
    for word in words:
        name, _, text = word.partition("=")
        value = {"true": True, "false": False}.get(text, int(text) if text.isdigit() else text)
        inner, _, last = name.rpartition(".")
        (placement.setdefault(inner, {}) if inner else placement)[last] = value
    return placement


@pytest.mark.parametrize("case", CASES, ids=[case.splitlines()[0] for case in CASES])
def test_places_each_wish_on_each_set_of_nodes(case):
    head, *rows = case.splitlines()
    model, *words = head.strip("[]").split()
    expected = dict(row.split(" = ") for row in rows)
    found = {
        nodes: shown(plan(machines(nodes), [wish(model, **placement_of(words))])[model]) for nodes in expected
    }
    assert found == expected
    assert len(expected) == 10


QUEUES = [
    ("a:2x24", [("0.5B", "one", {"gpus": 2}), ("0.5B", "two", {"gpus": 2})], ["r2 e2t1 a2", "r2 e2t1 a2"]),
    ("a:2x141", [("7B", "full", {"trains": "full"}), ("7B", "more", {"trains": "full"})],
     ["r2 e2t1 a2", "wait"]),
    ("a:2x141 b:1x24", [("32B", "large", {}), ("32B", "second", {}), ("0.5B", "small", {})],
     ["r2 e1t2 a2", "wait", "r1 e1t1 b1"]),
    ("a:1x24", [("72B", "never", {}), ("0.5B", "small", {})], ["never", "r1 e1t1 a1"]),
    ("a:8x80", [("7B", "one", {"gpus": 4}), ("7B", "two", {"gpus": 4})], ["r4 e4t1 a4", "r4 e4t1 a4"]),
    ("a:0", [("7B", "cpu", {}), ("7B", "again", {"cpus": 1.0})], ["cpu r1", "cpu r1"]),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "queue", "expected"), QUEUES)
def test_lets_large_model_wait_without_blocking_small_ones(nodes, queue, expected):
    wishes = [wish(model, name, **placement) for model, name, placement in queue]
    found = plan(machines(nodes), wishes)
    assert [shown(found[one.name]) for one in wishes] == expected


@pytest.mark.parametrize("gpus", [4, None])
def test_keeps_room_for_a_model_passed_long(gpus):
    nodes = machines("a:4x141" if gpus else "a:3x141")
    held = plan(nodes, [wish("32B", "held", gpus=2)])["held"]
    queue = [wish("32B", "large", gpus=gpus), wish("7B", "small", gpus=1)]

    def small(nodes, **settings):
        found = plan(nodes, queue, [held], **settings)
        assert shown(found["large"]) == "wait"
        return found["small"]

    assert shown(small(nodes)) == "r1 e1t1 a1"
    kept = small(nodes, passed_long=["large"])
    assert not kept.forever
    assert kept.reason.startswith("needs 1 GPU")
    assert "waits longer" in kept.reason
    # Not where it could have nothing, nor for one that waits in vain.
    assert shown(small([*nodes, machine("b", 1, 48)], passed_long=["large"])) == "r1 e1t1 b1"
    assert shown(small(nodes, passed_long=["large"], stays=["held"])) == "r1 e1t1 a1"


def test_gives_second_model_other_gpus_while_some_are_free():
    found = plan(machines("a:2x24"), [wish("tiny", "one"), wish("tiny", "two")])
    assert {placed.claims[0][1] for placed in found.values()} == {0, 1}


def test_says_with_numbers_who_holds_what():
    held = plan(machines("a:4x141"), [wish("7B", "held", trains="full", gpus=2)])["held"]
    waiting = plan(
        machines("a:4x141"), [wish("7B", "next", tensor_parallel=4, gpus=4, trains="full")], [held]
    )
    assert not waiting["next"].forever
    assert waiting["next"].holders == (("held", 2),)
    assert "needs 4 GPUs" in waiting["next"].reason
    assert "the largest free has 2" in waiting["next"].reason


@pytest.mark.parametrize("wished", [{"gpus": 16}, {"learner": {"ranks": 16}}])
def test_names_setting_that_asks_for_too_many_gpus(wished):
    reason = plan(machines("a:8x80"), [wish("7B", **wished)])["7B"].reason
    assert "16 GPUs" in reason
    assert "models.7B.placement." in reason


def test_waits_for_gpus_that_others_hold_unless_cpus_are_wished():
    taken = replace(machine("a"), gpus_of_others=4)
    waits = plan([taken], [wish("7B")])["7B"]
    assert not waits.forever
    assert "4 GPUs" in waits.reason
    assert shown(plan([taken], [wish("7B", gpus=4)])["7B"]) == "wait"
    assert shown(plan([taken], [wish("7B", gpus=0)])["7B"]) == "cpu r1"
    assert shown(plan([taken, machine("b", 1, 80)], [wish("7B")])["7B"]) == "r1 e1t1 b1"
    partly = replace(machine("a", 2, 80), gpus_of_others=2)
    assert shown(plan([partly], [wish("7B")])["7B"]) == "r2 e2t1 a2"
    assert shown(plan([partly], [wish("7B", gpus=4)])["7B"]) == "wait"
    assert shown(plan([partly], [wish("7B", gpus=4, labels={"zone": "b"})])["7B"]) == "never"
    elsewhere = [partly, machine("b", memory=1, zone="b")]
    assert shown(plan(elsewhere, [wish("7B", labels={"zone": "b"})])["7B"]) == "never"
    # Nodes that never had a GPU are meant to be used as they are.
    assert shown(plan([replace(taken, gpus_of_others=0)], [wish("7B")])["7B"]) == "cpu r1"


def test_keeps_pool_where_its_first_rank_is():
    placed = plan(machines("a:3x80 b:3x80"), [wish("7B", gpus=4)])["7B"]
    ranks = placed.of("rank")
    assert placed.of("pool")[0].node_id == ranks[0].node_id == placed.of("engine")[0].node_id
    assert [rank.node_id for rank in ranks] == ["b", "b", "b", "a"]


def test_needs_processors_and_memory_on_nodes_with_gpus():
    nodes = [machine("a", 8, 80, cpus=3, memory=3), machine("b", 1, 80, cpus=64)]
    placed = plan(nodes, [wish("7B")])["7B"]
    assert placed.of("pool")[0].node_id == "b"
    assert plan(nodes[:1], [wish("7B")])["7B"].forever
    few = plan([machine("a", 8, 80, cpus=6)], [wish("7B")])["7B"]
    assert few.gpus == 2  # one CPU for each rank and engine, two for environment workers


def test_uses_nodes_for_ranks_alone_where_pool_has_no_room():
    nodes = [machine("a", 8, 80, cpus=12), machine("b", 8, 80, cpus=32)]
    large = wish("7B", cpus=14.0, cpu_wish=14.0, gpus=16)
    placed = plan(nodes, [large])["7B"]
    assert shown(placed) == "r16 e8t1 a8+b8"
    assert placed.of("pool")[0].node_id == placed.of("rank")[0].node_id == "b"
    assert {part.node_id for part in placed.of("engine")} == {"b"}
    assert plan(nodes[:1], [large])["7B"].forever
    # Without a wish for GPUs it stays on nodes with room for its pool.
    assert shown(plan(nodes, [wish("7B", cpus=14.0, cpu_wish=14.0)])["7B"]) == "r8 e8t1 b8"


def test_plans_merged_adapters_where_the_model_is_known():
    known = [wish("0.5B"), replace(wish("0.5B", "few bits"), quantized="nf4")]
    wishes = [*known, replace(wish("0.5B", "unknown"), shape=None)]
    found = {one.name: plan(machines("a:1x80"), [one])[one.name].of("engine")[0] for one in wishes}
    merged = {name: engine.merged_adapters for name, engine in found.items()}
    assert merged == {"0.5B": 2, "few bits": 0, "unknown": None}


def test_shards_over_more_gpus_what_does_not_fit_on_one():
    wished, free = (wish("7B", trains="full", tensor_parallel=1, gpus=gpus) for gpus in (2, None))
    assert shown(plan(machines("a:2x141"), [wished])["7B"]) == "r2 e2t1 a2"
    assert shown(plan(machines("a:2x141"), [free])["7B"]) == "r2 e2t1 a2"


def test_divides_engines_over_no_more_gpus_than_wished():
    apart = wish("0.5B", gpus=4, engines=2, together=False, trains="full")
    assert shown(plan(machines("a:8x24"), [apart])["0.5B"]) == "r2 e2t1 a4"


def test_names_the_engines_that_keep_each_other_small():
    (found,) = plan(machines("a:2x48"), [wish("32B", gpus=2, engines=2)]).values()
    assert isinstance(found, NotPlaced)
    assert "models.32B.placement.engines=2" in found.reason


def test_counts_teachers_on_gpus_of_ranks():
    plain, taught = wish("7B", gpus=2), replace(wish("7B", gpus=2), teacher_bytes=30 * GB)
    without, beside = (plan(machines("a:2x141"), [one])["7B"] for one in (plain, taught))
    assert [rank.gpu_bytes for rank in beside.of("rank")] == [
        rank.gpu_bytes + 30 * GB for rank in without.of("rank")
    ]
    assert beside.of("engine")[0].gpu_bytes == without.of("engine")[0].gpu_bytes
    assert shown(plan(machines("a:2x48"), [replace(taught, teacher_bytes=48 * GB)])["7B"]) == "never"


@pytest.mark.parametrize("together", [True, False])
def test_counts_full_weights_that_wait_on_gpus_of_engines(together):
    plain = replace(wish("0.5B", gpus=2, trains="full", together=together), engine_share=0.4)
    keeping = replace(plain, keeps_full_weights=True)
    adapters = replace(keeping, placement=keeping.placement.model_copy(update={"trains": "lora"}))
    more = waiting_bytes(SHAPES["0.5B"])
    without, beside = (plan(machines("a:2x80"), [one])["0.5B"] for one in (plain, keeping))
    engines = {(part.node_id, gpu) for part in beside.of("engine") for gpu in part.gpus}
    for (*place, size), (*_, before) in zip(sorted(beside.claims), sorted(without.claims), strict=True):
        assert size == before + (more if tuple(place) in engines else 0)
    # What is vLLM's stays the same.
    assert [e.gpu_bytes for e in beside.of("engine")] == [e.gpu_bytes for e in without.of("engine")]
    of_lora = [replace(adapters, keeps_full_weights=each) for each in (True, False)]
    with_it, without_it = (plan(machines("a:2x80"), [one])["0.5B"].claims for one in of_lora)
    assert with_it == without_it


CLUSTERS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([24, 80, 141]), st.integers(2, 40)), min_size=1, max_size=3
)
SINGLE = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.integers(0, 5),
        "tensor_parallel": st.sampled_from([1, 2, 4]),
        "trains": st.sampled_from(["lora", "full"]),
    },
)
WISHES = st.lists(st.tuples(st.sampled_from(["tiny", "0.5B", "7B", "32B"]), SINGLE), min_size=1, max_size=4)


def asked(given):
    return [
        wish(model, str(number), **placement)
        for number, (model, placement) in enumerate(given)
        if not placement.get("gpus") or placement.get("tensor_parallel", 1) <= placement["gpus"]
    ]


@settings(max_examples=75, deadline=None, derandomize=True)
@given(CLUSTERS, WISHES)
def test_never_plans_gpu_processor_or_engine_twice(cluster, given):
    nodes = [machine(f"n{i}", gpus, gb, cpus=cpus) for i, (gpus, gb, cpus) in enumerate(cluster)]
    found = plan(nodes, asked(given))
    placed = [each for each in found.values() if isinstance(each, Placed)]
    for node in nodes:
        for gpu, size in enumerate(node.gpus):
            claims = [c[2] for each in placed for c in each.claims if c[:2] == (node.node_id, gpu)]
            assert sum(claims) <= usable_bytes(size)
        own = [part for each in placed for part in each.parts if part.node_id == node.node_id]
        assert sum(part.cpus for part in own) <= node.cpus + 1e-6
        assert sum(part.memory_bytes for part in own) <= node.memory_bytes
    for each in placed:
        engines = [(part.node_id, gpu) for part in each.of("engine") for gpu in part.gpus]
        assert len(engines) == len(set(engines))
        assert {len(part.gpus) for part in each.of("engine")} <= {1, 2, 4, 8}
        claims = {(node_id, gpu): size for node_id, gpu, size in each.claims}
        assert len(claims) == len(each.claims)
        for part in each.parts:
            assert all(part.gpu_bytes <= claims[part.node_id, gpu] for gpu in part.gpus)
    for each in found.values():
        if isinstance(each, NotPlaced):
            assert any(letter.isdigit() for letter in each.reason)


@settings(max_examples=75, deadline=None, derandomize=True)
@given(CLUSTERS, WISHES)
def test_lets_no_model_wait_that_would_fit(cluster, given):
    nodes = [machine(f"n{i}", gpus, gb, cpus=400) for i, (gpus, gb, _) in enumerate(cluster)]
    wishes = asked(given)
    found = plan(nodes, wishes)
    placed = [each for each in found.values() if isinstance(each, Placed)]
    waiting = [one for one in wishes if isinstance(found[one.name], NotPlaced)]
    again = plan(nodes, waiting[::-1], placed)
    assert all(isinstance(each, NotPlaced) for each in again.values())
    # The last to be placed had room only after all others; alone, everything that waits has room.
    for one in waiting:
        alone = plan(nodes, [one])[one.name]
        assert found[one.name].forever == isinstance(alone, NotPlaced)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_finds_engines_wherever_counting_finds_them(size):
    for free in ([3, 3], [4, 1], [2, 2, 1], [1, 1, 1, 1]):
        nodes = [machine(f"n{i}", gpus, 80) for i, gpus in enumerate(free)]
        room = sum(gpus // size for gpus in free)
        for engines in (1, 2, 3):
            one = wish("7B", tensor_parallel=size, engines=engines)
            assert isinstance(plan(nodes, [one])["7B"], Placed) == (engines <= room)
