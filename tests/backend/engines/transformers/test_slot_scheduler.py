"""Requests that come, go and meet in the same sequence, one forward at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from backend.engines.transformers.packed_model import PackedModel
from backend.engines.transformers.request_state import RequestState
from backend.engines.transformers.slot_scheduler import SlotScheduler
from backend.engines.transformers.slot_table import Counters, SlotLimits
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

LONG = [3 + 7 * index % 800 for index in range(90)]
OTHER = [3 + 11 * index % 800 for index in range(40)]


class Device:
    def __init__(self) -> None:
        self.shared: list[bool] = []
        """Whether others who wait for it get as much of its time, for each forward."""

    @contextmanager
    def taken(self, *, alone: bool, shares: bool) -> Iterator[None]:
        self.shared.append(shares)
        yield


class Asker:
    def __init__(self) -> None:
        self.gone = False

    def __call__(self, answers: Sequence[Completion | SampleFailure]) -> None:
        raise AssertionError("a scheduler returns answers")


class Steps:
    """A scheduler over nano, and the answers that it has given."""

    def __init__(
        self, model: PackedModel, *, iteration_tokens: int = 32, most_active: int = 64, **limits: Any
    ) -> None:
        self._model = model
        self.base = model.policies.base
        settings: dict[str, Any] = {"slots": 64, "bytes": 1 << 24, "length": 1024}
        self.counters = Counters()
        self.scheduler = SlotScheduler(
            model,
            SlotLimits(**(settings | limits)),
            self.counters,
            iteration_tokens=iteration_tokens,
            most_active=most_active,
            clock=lambda: 0.0,
        )
        self.answers: dict[str, Completion | SampleFailure] = {}
        self.device = Device()

    def ask(
        self,
        name: str,
        prompt: Sequence[int],
        *,
        tokens: int = 12,
        session: str = "owner/",
        asker: Any = None,
    ) -> None:
        request = SampleRequest(
            request_id=name,
            policy="",
            policy_version=0,
            prompt_ids=list(prompt),
            max_tokens=tokens,
            seed=sum(name.encode()),
            session_id=session,
        )
        policy = self._model.policies.base
        limit = len(prompt) + tokens
        self.scheduler.add(
            [RequestState(request=request, policy=policy, deliver=asker or Asker(), limit=limit)]
        )

    def step(self) -> None:
        for state in self.scheduler.step(self.device):
            assert state.answer is not None
            self.answers[state.answer.request_id] = state.answer

    def finish(self) -> dict[str, Completion]:
        while not self.scheduler.idle:
            self.step()
        return {name: answer for name, answer in self.answers.items() if isinstance(answer, Completion)}


@pytest.fixture(scope="module")
def model() -> PackedModel:
    return PackedModel(PACKAGED_MODELS["nano"], device=torch.device("cpu"), dtype=torch.float32)


def test_hands_prompt_on_after_its_leader_left(model):
    steps = Steps(model)
    leaves = Asker()
    steps.ask("leaves", LONG, asker=leaves)
    steps.ask("first", LONG)
    steps.step()
    leaves.gone = True
    # "first" is left without anybody to wait for, and stands where "second" does, whom the others follow.
    for name in ("second", "third", "fourth"):
        steps.ask(name, LONG)
    found = steps.finish()
    assert steps.counters.failed_forwards == 0
    for name in ("first", "second", "third", "fourth"):
        steps = Steps(model)
        steps.ask(name, LONG)
        alone = steps.finish()[name]
        assert found[name].token_ids == alone.token_ids
        assert found[name].sampling_logprobs == pytest.approx(alone.sampling_logprobs, abs=1e-4)


def test_leaves_room_of_a_finished_long_sequence_to_short_ones(model):
    # Room for 1,024 tokens in all.
    steps = Steps(model, bytes=1024 * model.bytes_per_token, iteration_tokens=4096)

    def play(names: str) -> int:
        before = steps.counters.iterations
        for number in range(24):
            steps.ask(f"{names}{number}", [3 + (number * 13 + i) % 700 for i in range(20)], tokens=20)
        assert len(steps.finish()) >= 24
        return steps.counters.iterations - before

    before = play("a")
    steps.ask("long", [3 + i % 800 for i in range(700)], tokens=1)
    steps.finish()
    play("b")
    assert steps.scheduler.table.cache.slots > 4
    assert play("c") <= before


def test_does_not_cut_a_kept_long_sequence_for_short_ones(model):
    steps = Steps(model, bytes=2048 * model.bytes_per_token, iteration_tokens=4096)
    steps.ask("long", [3 + i % 800 for i in range(700)], tokens=8, session="owner/game")
    past = steps.finish()["long"]
    steps.ask("short", OTHER)
    steps.finish()
    reused = steps.counters.reused_tokens
    steps.ask("next", [*(3 + i % 800 for i in range(700)), *past.token_ids, 5], session="owner/game")
    steps.finish()
    assert steps.counters.reused_tokens - reused == 707


def test_frees_room_of_a_request_whose_caller_left_early(model):
    steps = Steps(model, bytes=1024 * model.bytes_per_token, iteration_tokens=4096)
    for number in range(6):
        steps.ask(f"kept{number}", OTHER[number:], session=f"owner/game{number}")
    steps.finish()
    gone = Asker()
    steps.ask("gone", [3 + i % 800 for i in range(900)], asker=gone)
    gone.gone = True
    steps.step()
    assert isinstance(steps.answers["gone"], SampleFailure)
    assert steps.counters.evictions == 0
    assert steps.scheduler.table.cache.length < 900


def ask_as(steps: Steps, owner: str, name: str, prompt: Sequence[int], tokens: int = 12) -> None:
    request = SampleRequest(
        request_id=name,
        policy="",
        policy_version=0,
        prompt_ids=list(prompt),
        max_tokens=tokens,
        seed=sum(name.encode()),
        session_id=f"{owner}/",
    )
    state = RequestState(request=request, policy=steps.base, deliver=Asker(), limit=len(prompt) + tokens)
    steps.scheduler.add([state])


def prompt(number: int, length: int = 40) -> list[int]:
    return [3 + (number * 13 + 7 * index) % 800 for index in range(length)]


@pytest.mark.parametrize(
    "limits", [{"most_active": 4}, pytest.param({"slots": 4}, marks=pytest.mark.full("reclaims alike"))]
)
def test_reclaims_slots_from_flooding_tenant_without_losing_its_tokens(model, limits):
    steps = Steps(model, **limits)
    for number in range(12):
        ask_as(steps, "flood", f"flood{number}", prompt(number), tokens=60)
    for _ in range(10):
        steps.step()
    for number in range(2):
        ask_as(steps, "small", f"small{number}", prompt(90 + number), tokens=4)
    before = steps.counters.iterations
    while not {"small0", "small1"} <= steps.answers.keys():
        steps.step()
    assert steps.counters.iterations - before <= 20
    assert not any(name.startswith("flood") for name in steps.answers)
    found = steps.finish()
    assert 1 <= steps.counters.preemptions <= 4
    for number in (0, 3, 11):
        alone = Steps(model)
        ask_as(alone, "flood", f"flood{number}", prompt(number), tokens=60)
        expected = alone.finish()[f"flood{number}"]
        assert found[f"flood{number}"].token_ids == expected.token_ids
        assert found[f"flood{number}"].sampling_logprobs == pytest.approx(
            expected.sampling_logprobs, abs=1e-4
        )


def test_keeps_a_forward_beside_a_flood_about_as_small(model, monkeypatch):
    sizes: list[int] = []
    logits = model.logits

    def counted(token_ids: Sequence[int], *others: Any, **options: Any) -> Any:
        sizes.append(len(token_ids))
        return logits(token_ids, *others, **options)

    monkeypatch.setattr(model, "logits", counted)
    steps = Steps(model, iteration_tokens=4096)
    for number in range(24):
        ask_as(steps, "flood", f"flood{number}", prompt(number, 100), tokens=30)
    ask_as(steps, "small", "small", prompt(99), tokens=20)
    while "small" not in steps.answers:
        steps.step()
    # All 24 would have been 2,400 tokens at first, and 24 at each step after that.
    assert max(sizes) <= 256
    assert sum(sizes) <= 24 * 20 + 2 * len(prompt(99))
    assert len(steps.finish()) == 25


def test_shares_device_during_a_burst_without_queueing_other_tenants(model):
    steps = Steps(model, most_active=2)
    for number in range(4):
        steps.ask(f"burst {number}", LONG, session="ada/")
    steps.step()
    steps.ask("single", OTHER, tokens=1, session="bob/")
    while "single" not in steps.answers:
        steps.step()
    assert not any(steps.device.shared)
    steps.step()
    assert steps.device.shared[-1]
    steps.finish()
    assert not steps.device.shared[-1]
