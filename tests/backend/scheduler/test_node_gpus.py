"""Which GPUs of a cluster's nodes the service holds."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from backend.scheduler.node_gpus import NodeGpus
from tests.backend.scheduler.conftest import Clock


@dataclass
class Holders:
    """Nodes whose GPUs are free, or held by other programs."""

    free_by_node: dict[str, list[str]]
    held: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    broken: bool = False
    tells: bool = True
    failing: bool = False
    answers: int = 0

    def free(self, node_id):
        return len(self.free_by_node[node_id])

    def found(self, node_id, number):
        return self._answer(self.held[node_id, number]) if (node_id, number) in self.held else None

    def hold(self, node_id, number, gpus):
        taken = self.free_by_node[node_id][:gpus]
        del self.free_by_node[node_id][:gpus]
        self.held[node_id, number] = taken
        return self._answer(taken)

    def give_back(self, node_id, number):
        self.free_by_node[node_id] += self.held.pop((node_id, number))

    def _answer(self, names):
        answer = Future()
        self.answers += 1
        if self.broken:
            answer.set_exception(RuntimeError("it died"))
        else:
            answer.set_result(None if self.failing else dict.fromkeys(names if self.tells else (), 24))
        return answer


def test_holds_what_other_programs_give_back():
    holders = Holders({"a": ["2"], "b": []})
    gpus, nodes = NodeGpus(holders), {"a": 3, "b": 1}
    gpus.look(nodes)
    assert (gpus.of("a"), gpus.of("b")) == ({"2": 24}, {})
    assert gpus.are_known("b")
    assert (gpus.of_others("a"), gpus.of_others("b")) == (2, 1)
    holders.free_by_node |= {"a": ["0", "1"], "b": ["0"]}
    gpus.look(nodes)
    assert list(gpus.of("a")) == ["2", "0", "1"], "a plan names them by their place"
    assert list(gpus.of("b")) == ["0"]
    assert (gpus.of_others("a"), gpus.of_others("b")) == (0, 0)
    # The next scheduler sees the same.
    adopted = NodeGpus(holders)
    for _ in range(3):
        adopted.look(nodes)
    assert list(adopted.of("a")) == ["2", "0", "1"]


def test_takes_gpus_of_unknown_memory_for_nobody_elses():
    gpus = NodeGpus(Holders({"a": ["0"]}, tells=False))
    gpus.look({"a": 1})
    assert gpus.are_known("a")
    assert (gpus.of("a"), gpus.of_others("a")) == ({}, 0)


def test_asks_again_where_nvidia_smi_failed():
    holders, clock = Holders({"a": ["0", "1"]}, failing=True), Clock()
    gpus = NodeGpus(holders, clock)
    for _ in range(4):
        gpus.look({"a": 2})
        assert (gpus.are_known("a"), gpus.of("a"), gpus.of_others("a")) == (True, {}, 2)
        clock.now += 15.0
    assert holders.answers == 2
    holders.failing = False
    gpus.look({"a": 2})
    assert (list(gpus.of("a")), gpus.of_others("a")) == (["0", "1"], 0)
    assert list(holders.held) == [("a", 0)], "one holder has them all the time"


def test_forgets_nodes_that_left_and_tries_again_what_failed():
    holders = Holders({"a": ["0"]}, broken=True)
    gpus = NodeGpus(holders)
    gpus.look({"a": 1})
    assert not gpus.are_known("a")
    holders.broken = False
    gpus.look({"a": 1})
    assert gpus.of("a") == {"0": 24}
    gpus.look({})
    assert not gpus.are_known("a")
