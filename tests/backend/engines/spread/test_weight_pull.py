"""Fetching weights over real HTTP, with sources and hosts that die and bytes that change."""

from __future__ import annotations

import pytest
import torch

from backend.compute.weights import AdapterWeights, FullWeights, weights_sha256
from backend.engines.scripted.scripted_engine import ScriptedEngine
from backend.engines.spread import weight_file
from backend.engines.spread.orders import PublishOrder
from backend.engines.spread.weight_source import WeightSource
from backend.errors import WeightsDamagedError, WeightsUnavailableError
from tests.backend.engines.fleet import CHUNK, Host, Source
from tinkergym.errors import InvalidRequestError, NotFoundError


class Recorder(ScriptedEngine):
    """Remembers the weights that it was given."""

    def __init__(self) -> None:
        super().__init__(lambda request: [1])
        self.given = {}

    def publish(self, policy, version, weights, *, let_finish=False):
        self.given[policy, version] = weights
        return super().publish(policy, version, weights, let_finish=let_finish)


def adapter(seed: int = 0) -> AdapterWeights:
    generator = torch.Generator().manual_seed(seed)
    tensors = {f"layer.{n}.lora_A.weight": torch.randn(4, 8, generator=generator) for n in range(3)}
    tensors |= {f"layer.{n}.lora_B.weight": torch.zeros(8, 4) for n in range(3)}
    return AdapterWeights(rank=4, alpha=8.0, tensors=tensors, rslora=True)


def large(changed: float = 0.0) -> FullWeights:
    """Two and a half chunks in one tensor, an odd one, an empty one and one of another type."""
    big = torch.arange(CHUNK * 5 // 8, dtype=torch.float32)
    odd = torch.full((7, 3), changed, dtype=torch.bfloat16)
    return FullWeights(tensors={"big": big, "odd": odd, "none": torch.empty(0, 4), "one": torch.tensor(3.5)})


@pytest.fixture
def offered(tmp_path):
    return WeightSource(tmp_path)


@pytest.fixture(scope="module")
def server():
    source = Source(lambda wanted: b"")
    yield source
    source.close()


@pytest.fixture
def source(server, offered):
    server.read, server.dead = lambda wanted: offered.read(wanted.pieces), False
    return server


@pytest.fixture
def host(source, tmp_path):
    host = Host("engine-0", Recorder(), source.address, tmp_path)
    yield host
    host.close()


def order(offered, weights, version=1, policy="p") -> PublishOrder:
    manifest = offered.offer(policy, weights, weights_sha256(weights))
    return PublishOrder(policy=policy, version=version, manifest=manifest, let_finish=False)


@pytest.mark.parametrize("weights", [adapter(), large()], ids=["adapter", "full"])
def test_gives_the_engine_exactly_what_was_published(host, offered, weights):
    held = host.hosted.publish(order(offered, weights))
    given = host.engine.given["p", 1]
    assert type(given) is type(weights)
    assert held.sha256 == weights_sha256(given) == weights_sha256(weights)
    if isinstance(weights, AdapterWeights):
        assert (given.rank, given.alpha, given.rslora) == (4, 8.0, True)


def test_fetches_only_what_changed(host, offered):
    host.hosted.publish(order(offered, large()))
    before = host.pull.fetched_bytes
    host.hosted.publish(order(offered, large(changed=1.0), version=2))
    assert host.pull.fetched_bytes - before == 7 * 3 * 2
    host.hosted.publish(order(offered, large(changed=1.0), policy="copy"))
    assert host.pull.fetched_bytes - before == 7 * 3 * 2


def test_fetches_equal_tensors_once(host, offered):
    host.hosted.publish(order(offered, adapter()))
    assert host.pull.fetched_bytes == 3 * 4 * 8 * 4 + 8 * 4 * 4


def test_holds_adapters_of_several_policies(host, offered):
    for seed, policy in enumerate(("p", "q", "r")):
        host.hosted.publish(order(offered, adapter(seed), policy=policy))
    for seed, policy in enumerate(("p", "q", "r")):
        assert weights_sha256(host.engine.given[policy, 1]) == weights_sha256(adapter(seed))


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_goes_on_from_where_a_dead_source_stopped(host, offered, source, calls):
    order_of_p = order(offered, large())
    answered = []

    def read(wanted):
        source.dead = len(answered) >= calls
        answered.append(wanted)
        return offered.read(wanted.pieces)

    source.read = read
    with pytest.raises(WeightsUnavailableError):
        host.hosted.publish(order_of_p)
    assert host.engine.loaded() == {}
    assert host.pull.fetched_bytes == CHUNK * calls
    source.read, source.dead = lambda wanted: offered.read(wanted.pieces), False
    held = host.hosted.publish(order_of_p)
    assert held.sha256 == weights_sha256(host.engine.given["p", 1]) == weights_sha256(large())
    assert host.pull.fetched_bytes == sum(order_of_p.manifest.sizes.values())


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_lets_the_next_host_begin_when_one_dies(offered, source, tmp_path, calls):
    order_of_p = order(offered, large())
    first = Host("engine-0", Recorder(), source.address, tmp_path)
    answered = []

    def read(wanted):
        answered.append(wanted)
        if len(answered) > calls:
            raise NotFoundError("the host is killed here")
        return offered.read(wanted.pieces)

    source.read = read
    with pytest.raises(WeightsUnavailableError):
        first.hosted.publish(order_of_p)
    first.close()
    source.read = lambda wanted: offered.read(wanted.pieces)
    second = Host("engine-1", Recorder(), source.address, tmp_path)
    second.hosted.publish(order_of_p)
    assert weights_sha256(second.engine.given["p", 1]) == weights_sha256(large())
    second.close()


@pytest.mark.parametrize("where", ["first", "middle", "last"])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_uses_right_weights_or_none_when_a_byte_changes(host, offered, source, where, times):
    order_of_p = order(offered, large())
    spoiled = []

    def read(wanted):
        data = bytearray(offered.read(wanted.pieces))
        if len(spoiled) < times and (where != "last" or len(data) < CHUNK):
            spoiled.append(wanted)
            data[{"first": 0, "middle": len(data) // 2, "last": -1}[where]] ^= 1
        return bytes(data)

    source.read = read
    if times < 3:
        host.hosted.publish(order_of_p)
        assert weights_sha256(host.engine.given["p", 1]) == weights_sha256(large())
    else:
        try:
            host.hosted.publish(order_of_p)
        except WeightsDamagedError:
            assert not host.engine.given
        else:
            assert weights_sha256(host.engine.given["p", 1]) == weights_sha256(large())
    assert len(spoiled) == times


def test_refuses_weights_that_are_always_damaged(host, offered, source):
    order_of_p = order(offered, adapter())
    host.hosted.publish(order(offered, adapter(1), version=1, policy="q"))
    source.read = lambda wanted: bytes(sum(piece.length for piece in wanted.pieces))
    with pytest.raises(WeightsDamagedError):
        host.hosted.publish(order_of_p)
    assert host.engine.loaded() == {"q": 1}


def test_refuses_answers_of_the_wrong_length(host, offered, source):
    source.read = lambda wanted: offered.read(wanted.pieces)[:-1]
    with pytest.raises(WeightsUnavailableError):
        host.hosted.publish(order(offered, adapter()))
    assert not host.engine.given


def test_keeps_version_before_when_a_newer_one_replaced_the_wanted(host, offered):
    host.hosted.publish(order(offered, adapter(1)))
    late = order(offered, adapter(2), version=2)
    offered.offer("p", adapter(3), weights_sha256(adapter(3)))
    with pytest.raises(WeightsUnavailableError):
        host.hosted.publish(late)
    assert host.engine.loaded() == {"p": 1}


def test_unloads_a_policy_whose_engine_was_given_other_weights(host, offered):
    wrong = order(offered, adapter())
    wrong = wrong.model_copy(update={"manifest": wrong.manifest.model_copy(update={"sha256": "0" * 64})})
    with pytest.raises(WeightsDamagedError):
        host.hosted.publish(wrong)
    assert host.engine.loaded() == {}


def test_sends_no_more_than_a_chunk_at_once(offered):
    manifest = offered.offer("p", adapter(), weights_sha256(adapter()))
    piece = weight_file.Piece(sha256=manifest.tensors[0].sha256, start=0, length=weight_file.CHUNK_BYTES)
    with pytest.raises(InvalidRequestError):
        offered.read([piece, piece])


def test_sends_nothing_outside_of_a_tensor(offered):
    manifest = offered.offer("p", adapter(), weights_sha256(adapter()))
    first = manifest.tensors[0]
    for start, length in ((-1, 1), (first.size, 1), (0, first.size + 1), (0, -1)):
        with pytest.raises(NotFoundError):
            offered.read([weight_file.Piece(sha256=first.sha256, start=start, length=length)])


def test_leaves_no_file_behind(host, offered, tmp_path):
    host.hosted.publish(order(offered, adapter()))
    assert not list(tmp_path.iterdir())
