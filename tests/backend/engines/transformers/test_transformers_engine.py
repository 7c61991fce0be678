from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from backend.compute.weights import AdapterWeights, FullWeights
from backend.engines.asking import Answers, Asked
from backend.engines.transformers import loaded_policies
from tests.backend.engines.transformers.answers import (
    VOCABULARY,
    answers,
    ask,
    assert_same_logprobs,
    complete,
    plain_model,
    prompt,
)
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

DECODER_LINEARS = ("_proj", "c_attn", "c_proj", "c_fc")


def adapter(
    directory: Path, seed: int, *, rank: int = 4, targets: tuple[str, ...] = DECODER_LINEARS
) -> AdapterWeights:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for path, module in AutoModelForCausalLM.from_pretrained(directory).named_modules():
        if path.endswith(targets):
            high, wide = module.weight.shape if type(module).__name__ == "Linear" else module.weight.T.shape
            key = f"base_model.model.{path}.lora_"
            tensors[f"{key}A.weight"] = torch.randn(rank, wide, generator=generator) * 0.2
            tensors[f"{key}B.weight"] = torch.randn(high, rank, generator=generator) * 0.2
    return AdapterWeights(rank=rank, alpha=2.0 * rank, tensors=tensors)


@pytest.mark.parametrize(
    "architecture", ["qwen3", "qwen2-tied", "llama", "mistral-window", "granite", "gpt2"]
)
def test_equals_plain_transformers_in_logprobs_whatever_the_architecture(make_model, start, architecture):
    engine = start(make_model(architecture))
    weights = adapter(make_model(architecture), seed=1)
    engine.publish("job", 3, weights)
    requests = [
        ask(f"r{i}", prompt(3 + 4 * i, i), policy="job", policy_version=3, max_tokens=4 + i, temperature=t)
        for i, t in enumerate([1.0, 0.5, 1.5, 0.0, 1.0])
    ]
    found = complete(engine, requests)
    model = plain_model(make_model(architecture), weights)
    for request in requests:
        assert len(found[request.request_id].token_ids) == request.max_tokens
        assert found[request.request_id].policy_version == 3
        assert_same_logprobs(model, request, found[request.request_id])


@torch.no_grad()
def test_equals_plain_transformers_in_logprobs_to_1e5(start, directory):
    """Among rows that want neither, with prompts that take several forwards, and more rows than places."""
    engine, model = start(directory, max_slots=3), plain_model(directory)
    requests = [
        ask(
            f"r{i}",
            prompt(n, i),
            top_logprobs=5,
            prompt_logprobs=True,
            top_prompt_logprobs=3 * i,
            prompt_entropies=i % 2 == 0,
            temperature=t,
            session_id=f"a/{i}",
        )
        for i, (n, t) in enumerate([(1, 1.0), (9, 0.5), (110, 1.5), (90, 0.0), (100, 1.0), (110, 1.0)])
    ]
    others = [ask(f"o{i}", prompt(9, i % 3), max_tokens=4) for i in range(6)]
    for _ in range(2):  # the second time over what the sessions left
        found = complete(engine, [*requests, *others])
        for request in requests:
            answer = found[request.request_id]
            logits = model(torch.tensor([request.prompt_ids + answer.token_ids])).logits[0].float()
            plain = torch.log_softmax(logits, -1)
            ids = request.prompt_ids
            expected = [float(plain[place, token]) for place, token in enumerate(ids[1:])]
            assert answer.prompt_logprobs[0] is None
            assert answer.prompt_logprobs[1:] == pytest.approx(expected, abs=1e-5)
            of_prompt, wanted = plain[: len(ids) - 1], request.top_prompt_logprobs
            ranks = (of_prompt > of_prompt.gather(1, torch.tensor(ids[1:])[:, None])).sum(-1) + 1
            assert answer.prompt_ranks == [None, *ranks.tolist()]
            assert (answer.top_prompt_logprobs is not None) == (wanted > 0)
            for row, top in zip(of_prompt, (answer.top_prompt_logprobs or [])[1:], strict=bool(wanted)):
                values, likeliest = row.topk(wanted)
                assert [token for token, _ in top] == likeliest.tolist()
                assert [value for _, value in top] == pytest.approx(values.tolist(), abs=1e-5)
            if request.prompt_entropies:
                spread = -(plain.exp() * plain).sum(-1)[: len(ids) - 1]
                assert answer.prompt_entropies[1:] == pytest.approx(spread.tolist(), abs=1e-5)
            else:
                assert answer.prompt_entropies is None
            drawn = torch.log_softmax(logits[len(ids) - 1 : -1] / (request.temperature or 1.0), -1)
            values, likeliest = drawn.topk(5)
            assert [[token for token, _ in one] for one in answer.top_logprobs] == likeliest.tolist()
            found_values = torch.tensor([[value for _, value in one] for one in answer.top_logprobs])
            assert torch.allclose(found_values, values, rtol=0, atol=1e-5)


def test_samples_the_same_tokens_alone_and_in_a_batch(start, directory):
    requests = [ask(f"r{i}", prompt(2 + i, i), max_tokens=3 + i % 5, seed=i) for i in range(12)]
    together = complete(start(directory), requests)
    engine = start(directory)
    for request in requests:
        alone = complete(engine, [request])[request.request_id]
        assert alone.token_ids == together[request.request_id].token_ids


def test_continues_completion_unchanged_when_it_is_asked_in_two_parts(start, directory):
    engine = start(directory)
    whole = complete(engine, [ask("whole", prompt(7), seed=5, max_tokens=8)])["whole"].token_ids
    rest = complete(engine, [ask("rest", prompt(7) + whole[:3], seed=5, max_tokens=5)])["rest"].token_ids
    assert rest == whole[3:]


def test_takes_the_likeliest_token_at_temperature_zero(start, directory):
    request = ask("greedy", prompt(9), temperature=0.0, max_tokens=5)
    completion = complete(start(directory), [request])["greedy"]
    model = plain_model(directory)
    ids = list(request.prompt_ids)
    for token in completion.token_ids:
        assert int(model(torch.tensor([ids])).logits[0, -1].argmax()) == token
        ids.append(token)


def test_ends_completion_at_and_including_a_stop_id(start, directory):
    engine = start(directory)
    free = complete(engine, [ask("free", prompt(5), max_tokens=8)])["free"]
    stop = free.token_ids[3]
    cut = complete(engine, [ask("free", prompt(5), max_tokens=8, stop_ids=[stop])])["free"]
    assert cut.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert (cut.finish_reason, free.finish_reason) == ("stop", "length")


def test_cuts_completion_at_the_context_and_rejects_prompt_filling_it(start, directory):
    engine = start(directory)
    found = answers(
        engine,
        [
            ask("cut", prompt(engine.context_length - 3), max_tokens=50),
            ask("full", prompt(engine.context_length)),
            ask("alien", [1, VOCABULARY]),
        ],
    )
    assert isinstance(found["cut"], Completion)
    assert (len(found["cut"].token_ids), found["cut"].finish_reason) == (3, "length")
    assert found["full"].error.type == "PromptTooLongError"
    assert found["alien"].error.type == "InvalidRequestError"


def test_prefills_equal_prompt_once_for_the_whole_group(start, directory):
    engine = start(directory)
    group = [ask(f"r{i}", prompt(20), seed=i, session_id=f"s{i}") for i in range(8)]
    found = complete(engine, group)
    stats = engine.stats()
    assert stats.prefilled_tokens == 20
    assert stats.copied_tokens == 7 * 20
    model = plain_model(directory)
    for request in group:
        assert_same_logprobs(model, request, found[request.request_id])
    assert len({tuple(answer.token_ids) for answer in found.values()}) > 1


def test_copies_an_equal_prompt_that_comes_later_too(start, directory):
    engine = start(directory)
    complete(engine, [ask("first", prompt(20), seed=1)])
    late = ask("late", prompt(20), seed=2)
    found = complete(engine, [late])
    assert engine.stats().prefilled_tokens == 20 + 1
    assert_same_logprobs(plain_model(directory), late, found["late"])


def test_computes_equal_prompts_of_two_owners_for_each(start, directory):
    engine = start(directory)
    together = [ask("a", prompt(20), session_id="ada/s"), ask("b", prompt(20), session_id="bob/s")]
    complete(engine, together)
    assert engine.stats().prefilled_tokens == 2 * 20
    complete(engine, [ask("later", prompt(20), session_id="cleo/")])
    assert engine.stats().prefilled_tokens == 3 * 20
    complete(engine, [ask("own", prompt(20), session_id="cleo/")])
    assert engine.stats().prefilled_tokens == 3 * 20 + 1
    assert engine.stats().reused_tokens == 0


def test_computes_next_turn_once_for_sessions_with_equal_past(start, directory):
    engine = start(directory)
    sessions = [f"s{i}" for i in range(6)]
    opening = complete(engine, [ask(f"a-{s}", prompt(20), seed=1, session_id=s) for s in sessions])
    assert len({tuple(answer.token_ids) for answer in opening.values()}) == 1
    before = engine.stats()
    history = prompt(20) + opening["a-s0"].token_ids
    # One session goes another way and must not take part.
    deltas = [prompt(7, 3)] * 5 + [prompt(7, 4)]
    turn = [
        ask(f"b-{s}", history + delta, seed=i, session_id=s)
        for i, (s, delta) in enumerate(zip(sessions, deltas, strict=True))
    ]
    found = complete(engine, turn)
    # Each delta, and the sampled token in front of it that was never fed to the model.
    assert engine.stats().prefilled_tokens - before.prefilled_tokens == 2 * (7 + 1)
    assert engine.stats().copied_tokens - before.copied_tokens == 4 * (7 + 1)
    model = plain_model(directory)
    for request in turn:
        assert_same_logprobs(model, request, found[request.request_id])
    assert len({tuple(found[f"b-{s}"].token_ids) for s in sessions[:5]}) > 1


def test_computes_only_what_is_new_in_next_turn_of_session(start, directory):
    engine = start(directory)
    first = [ask(f"a{i}", prompt(10 + i, i), session_id=f"s{i}") for i in range(5)]
    one = complete(engine, first)
    before = engine.stats()
    second = [
        ask(f"b{i}", first[i].prompt_ids + one[f"a{i}"].token_ids + prompt(4 + i, 9), session_id=f"s{i}")
        for i in range(5)
    ]
    two = complete(engine, second)
    # The last sampled token was never fed to the model, so each delta is one longer.
    assert engine.stats().prefilled_tokens - before.prefilled_tokens == sum(4 + i + 1 for i in range(5))
    model = plain_model(directory)
    for request in second:
        assert_same_logprobs(model, request, two[request.request_id])


def test_reuses_only_common_beginning_of_session_with_edited_past(start, directory):
    engine = start(directory)
    complete(engine, [ask("a", prompt(20), session_id="s")])
    edited = ask("b", prompt(12) + prompt(10, 3), session_id="s")
    found = complete(engine, [edited])
    assert engine.stats().reused_tokens == 12
    assert_same_logprobs(plain_model(directory), edited, found["b"])
    # The first prompt is no longer there, although its slot once held it.
    again = ask("c", prompt(20))
    assert_same_logprobs(plain_model(directory), again, complete(engine, [again])["c"])


@pytest.mark.parametrize("most_ranks", [128, 8], ids=["side by side", "one by one"])
def test_separates_adapters_in_one_batch(start, directory, monkeypatch, most_ranks):
    monkeypatch.setattr(loaded_policies, "MOST_RANKS", most_ranks)
    engine = start(directory)
    weights = {
        "one": adapter(directory, 1, rank=2),
        "two": adapter(directory, 2, rank=8, targets=("q_proj", "down_proj", "lm_head")),
        "three": adapter(directory, 3, targets=("v_proj",)),
        "": None,
    }
    for name, own in weights.items():
        if own is not None:
            engine.publish(name, 1, own)
    requests = [
        ask(
            f"{name}-{i}", prompt(6 + 3 * i, i), policy=name, policy_version=int(bool(name)), max_tokens=3 + i
        )
        for i in range(4)
        for name in weights
    ]
    found = complete(engine, requests)
    models = {name: plain_model(directory, own) for name, own in weights.items()}
    for request in requests:
        assert_same_logprobs(models[request.policy], request, found[request.request_id])


def test_samples_full_policy_with_its_own_weights_beside_an_adapter(start, make_model):
    directory = make_model("qwen2-tied")
    engine = start(directory)
    state = plain_model(directory).state_dict()
    generator = torch.Generator().manual_seed(5)
    full = FullWeights(
        tensors={
            k: v + 0.1 * torch.randn(v.shape, generator=generator)
            for k, v in state.items()
            if k != "lm_head.weight"
        }
    )
    own = adapter(directory, 4)
    engine.publish("full", 1, full)
    engine.publish("own", 1, own)
    requests = [
        ask(f"{name}{i}", prompt(5 + i), policy=name, policy_version=1)
        for i in range(3)
        for name in ("full", "own")
    ]
    found = complete(engine, requests)
    tied = FullWeights(tensors={**full.tensors, "lm_head.weight": full.tensors["model.embed_tokens.weight"]})
    models = {"full": plain_model(directory, tied), "own": plain_model(directory, own)}
    for request in requests:
        assert_same_logprobs(models[request.policy], request, found[request.request_id])


def test_finds_no_old_cache_after_a_publish(start, directory):
    engine = start(directory)
    engine.publish("job", 1, adapter(directory, 1))
    first = ask("a", prompt(16), policy="job", policy_version=1, session_id="s")
    one = complete(engine, [first])["a"]
    newer = adapter(directory, 2)
    engine.publish("job", 2, newer)
    again = ask("b", prompt(16), policy="job", policy_version=2, session_id="t")
    onward = ask(
        "c", first.prompt_ids + one.token_ids + [1, 2], policy="job", policy_version=2, session_id="s"
    )
    found = complete(engine, [onward, again])
    assert engine.stats().reused_tokens == 0
    model = plain_model(directory, newer)
    assert_same_logprobs(model, again, found["b"])
    assert_same_logprobs(model, onward, found["c"])
    assert engine.loaded() == {"job": 2}


def test_tells_requests_that_their_version_is_gone(start, directory):
    engine = start(directory)
    engine.publish("job", 2, adapter(directory, 1))
    found = answers(
        engine,
        [ask("old", prompt(4), policy="job", policy_version=1), ask("stranger", prompt(4), policy="other")],
    )
    assert {answer.error.type for answer in found.values()} == {"PolicyVersionGoneError"}


def test_answers_requests_in_flight_for_old_version_on_publish(start, directory):
    held = _Turnstile()
    engine = start(directory, device_lock=held)
    engine.publish("job", 1, adapter(directory, 1))
    found: Answers = {}
    done = threading.Event()

    def deliver(batch):
        found.update({answer.request_id: answer for answer in batch})
        done.set()

    held.stop_at_next()
    engine.submit([ask("r", prompt(4), policy="job", policy_version=1, max_tokens=50)], deliver)
    held.wait_until_stopped()
    engine.publish("job", 2, adapter(directory, 2))
    held.let_go()
    assert done.wait(60)
    assert found["r"].error.type == "PolicyVersionGoneError"


def test_fails_only_the_requests_of_a_raising_forward(start, directory):
    held = _Turnstile()
    engine = start(directory, device_lock=held)
    held.raise_at_next(RuntimeError("out of paper"))
    broken = answers(engine, [ask("r1", prompt(4), session_id="s"), ask("r2", prompt(5))])
    assert {answer.error.type for answer in broken.values()} == {"InternalServiceError"}
    request = ask("r3", prompt(4), session_id="s")
    assert_same_logprobs(plain_model(directory), request, complete(engine, [request])["r3"])
    assert engine.stats().failed_forwards == 1
    held.raise_at_next(MemoryError())
    broken = answers(engine, [ask("r4", prompt(4))])
    assert broken["r4"].error.code == "out_of_memory"


def test_rejects_weights_that_are_not_finite_or_do_not_fit(start, make_model, directory):
    engine = start(directory)
    good = adapter(directory, 1)
    name = next(iter(good.tensors))
    for bad in (torch.full_like(good.tensors[name], float("nan")), torch.zeros(3, 3)):
        with pytest.raises(InvalidRequestError):
            engine.publish("job", 1, AdapterWeights(rank=4, alpha=8, tensors={**good.tensors, name: bad}))
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "other_model"):
        engine.publish("job", 1, adapter(make_model("gpt2"), 1))
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "other_model"):
        engine.publish("job", 1, FullWeights(tensors={}))
    assert engine.loaded() == {}


def test_fails_alone_a_policy_whose_numbers_overflow(start, directory):
    engine = start(directory)
    state = plain_model(directory).state_dict()
    wild = {
        name: tensor * 1e38 if name.endswith(("v_proj.weight", "o_proj.weight")) else tensor
        for name, tensor in state.items()
    }
    engine.publish("wild", 1, FullWeights(tensors=wild))
    found = answers(
        engine,
        [ask("bad", prompt(9), policy="wild", policy_version=1, session_id="s"), ask("good", prompt(9))],
    )
    assert found["bad"].error.type == "InternalServiceError"
    model = plain_model(directory)
    assert isinstance(found["good"], Completion)
    # The failed sequence left no NaN behind for those that get its slot.
    later = [ask(f"r{i}", prompt(3 + i, i)) for i in range(20)]
    done = complete(engine, later)
    for request in later:
        assert_same_logprobs(model, request, done[request.request_id])


def test_generates_together_the_same_bits_whatever_ran_before(start, directory):
    weights = adapter(directory, 1)
    requests = [
        ask(
            f"r{i}", prompt(4 + i % 3, i), policy="job" if i % 2 else "", policy_version=i % 2, session_id="s"
        )
        for i in range(9)
    ]
    fresh = start(directory)
    fresh.publish("job", 1, weights)
    expected = fresh.generate_together(requests)
    used = start(directory)
    used.publish("job", 1, adapter(directory, 2))
    complete(used, [ask(f"x{i}", prompt(5 + i), session_id="s") for i in range(7)])
    used.publish("job", 1, weights)
    complete(used, [ask("y", prompt(5), policy="job", policy_version=1)])
    assert used.generate_together(requests) == expected
    assert used.generate_together(requests) == expected


def test_generates_together_the_same_bits_while_others_are_sampled(start, directory):
    weights = {name: adapter(directory, seed) for seed, name in enumerate(("job", "other", "third"))}
    requests = [
        ask(
            f"r{i}", prompt(4 + i % 3, i), policy="job" if i % 2 else "other", policy_version=1, max_tokens=20
        )
        for i in range(9)
    ]
    alone, busy = start(directory), start(directory)
    for engine in (alone, busy):
        for name, one in weights.items():
            engine.publish(name, 1, one)
    expected = alone.generate_together(requests)
    others = Asked(
        busy,
        [
            ask(f"o{i}", prompt(3 + i, i), policy=("third", "job")[i % 2], policy_version=1, max_tokens=9 * i)
            for i in range(1, 9)
        ],
    )
    assert busy.generate_together(requests) == expected
    assert all(isinstance(answer, Completion) for answer in others.wait(60).values())


def test_delays_but_does_not_stop_others_during_a_joint_batch(start, directory):
    """Nor does a tenant's second batch come before another tenant's first."""
    device = threading.Lock()
    engine = start(directory, device_lock=device)
    order: list[str] = []
    done = threading.Semaphore(0)

    def note(name: str) -> Callable[[Sequence[Completion | SampleFailure]], None]:
        def deliver(answers: Sequence[Completion | SampleFailure]) -> None:
            assert all(isinstance(answer, Completion) for answer in answers)
            order.append(name)
            done.release()

        return deliver

    with device:
        for name, tokens in (("ada/long", 50), ("ada/late", 3), ("bob/short", 3)):
            engine.submit_together([ask(name, prompt(4), max_tokens=tokens, session_id=name)], note(name))
        engine.submit([ask("queue", prompt(4), max_tokens=5, session_id="eve/s")], note("queue"))
    for _ in range(4):
        assert done.acquire(timeout=60)
    assert sorted(order[:2]) == ["bob/short", "queue"]
    assert order[2:] == ["ada/long", "ada/late"]


def test_ends_a_queued_batch_when_its_sender_is_gone(start, directory):
    class Gone(Future):
        gone = True

        def __call__(self, answers):
            self.set_result(([answer.error.type for answer in answers], running.done()))

    device, running, gone = threading.Lock(), Future(), Gone()
    engine = start(directory, device_lock=device)
    with device:
        long = ask("long", prompt(4), max_tokens=50, session_id="ada/1")
        engine.submit_together([long], running.set_result)
        engine.submit_together([ask(f"g{i}", prompt(4), session_id="ada/2") for i in range(2)], gone)
    assert gone.result(60) == (["ServiceUnavailableError"] * 2, False)
    assert isinstance(running.result(60)[0], Completion)


def test_runs_batches_of_jobs_without_tenant_independently(start, directory):
    device, order, done = threading.Lock(), [], threading.Semaphore(0)
    engine = start(directory, device_lock=device)
    engine.publish("job", 1, adapter(directory, 1))

    def note(answers):
        order.extend(answer.request_id for answer in answers)
        done.release()

    with device:
        engine.submit_together([ask("long", prompt(4), max_tokens=50)], note)
        engine.submit_together([ask("short", prompt(4), max_tokens=3, policy="job", policy_version=1)], note)
    for _ in range(2):
        assert done.acquire(timeout=60)
    assert order == ["short", "long"]


def test_sleeps_only_between_batches(start, directory):
    engine, found = start(directory), Future()
    assert engine.sleep()
    engine.submit_together([ask("a", prompt(4), max_tokens=100)], found.set_result)
    while not engine.sleep():
        pass
    assert found.done()
    assert isinstance(found.result()[0], Completion)
    engine.generate_together([ask("b", prompt(4))])
    assert not engine.asleep


def test_answers_each_request_in_its_place_when_generating_together(start, directory):
    engine = start(directory)
    found = engine.generate_together(
        [ask("a", prompt(4)), ask("b", prompt(4), policy="?"), ask("a", prompt(3))]
    )
    assert [answer.request_id for answer in found] == ["a", "b", "a"]
    assert isinstance(found[1], SampleFailure)


def test_answers_some_before_beginning_others_at_its_limit(start, directory):
    device = threading.Lock()
    engine = start(directory, most_active=4, device_lock=device)
    requests = [ask(f"r{n}", prompt(4 + n, n), max_tokens=5) for n in range(12)]
    order: list[str] = []
    found: dict[str, Completion | SampleFailure] = {}
    done = threading.Event()

    def deliver(batch: Sequence[Completion | SampleFailure]) -> None:
        order.extend(answer.request_id for answer in batch)
        found.update({answer.request_id: answer for answer in batch})
        if len(order) == 12:
            done.set()

    with device:  # so that all of them wait
        engine.submit(requests, deliver)
    assert done.wait(60)
    thirds = [set(order[start : start + 4]) for start in (0, 4, 8)]
    assert thirds == [{f"r{n}" for n in range(first, first + 4)} for first in (0, 4, 8)]
    for request in requests:
        assert_same_logprobs(plain_model(directory), request, found[request.request_id])


@pytest.mark.parametrize("together", [False, True])
def test_stops_sampling_what_no_caller_awaits_any_more(start, directory, together):
    class Receiver:
        gone = False

        def __init__(self) -> None:
            self.answers: Answers = {}
            self.done = threading.Event()

        def __call__(self, batch: Sequence[Completion | SampleFailure]) -> None:
            self.answers |= {answer.request_id: answer for answer in batch}
            self.done.set()

    device = threading.Lock()
    engine = start(directory, device_lock=device)
    leaves, stays = Receiver(), Receiver()
    with device:
        begin = engine.submit_together if together else engine.submit
        begin([ask("leaves", prompt(4, 1), max_tokens=50)], leaves)
        engine.submit([ask("stays", prompt(4, 2), max_tokens=50)], stays)
        leaves.gone = True
    assert leaves.done.wait(60)
    assert stays.done.wait(60)
    assert isinstance(leaves.answers["leaves"], SampleFailure)
    assert isinstance(completion := stays.answers["stays"], Completion)
    assert len(completion.token_ids) == 50


def test_answers_what_is_still_waiting_when_closing(start, directory):
    held = _Turnstile()
    engine = start(directory, device_lock=held)
    found: list[Completion | SampleFailure] = []
    held.stop_at_next()
    engine.submit([ask("a", prompt(4), max_tokens=100)], found.extend)
    held.wait_until_stopped()
    engine.submit([ask("b", prompt(4))], found.extend)
    closing = threading.Thread(target=engine.close)
    closing.start()
    held.let_go()
    closing.join(60)
    engine.submit([ask("c", prompt(4))], found.extend)
    late = engine.generate_together([ask("d", prompt(4))])
    assert [answer.error.type for answer in (*found, *late)] == ["ServiceUnavailableError"] * 4


def test_closes_without_waiting_for_the_end_of_a_joint_batch(start, directory):
    held = _Turnstile()
    engine = start(directory, device_lock=held)
    found: list[Completion | SampleFailure] = []
    held.stop_at_next()
    asking = threading.Thread(
        target=lambda: found.extend(engine.generate_together([ask("a", prompt(4), max_tokens=100)]))
    )
    asking.start()
    held.wait_until_stopped()
    closing = threading.Thread(target=engine.close)
    closing.start()
    held.let_go()
    closing.join(60)
    asking.join(60)
    assert [answer.error.type for answer in found] == ["ServiceUnavailableError"]


def test_survives_receiver_that_raises(start, directory):
    engine = start(directory)
    called = threading.Event()

    def deliver(batch):
        called.set()
        raise RuntimeError("receiver is broken")

    engine.submit([ask("a", prompt(4))], deliver)
    assert called.wait(60)
    assert complete(engine, [ask("b", prompt(4))])


class _Turnstile:
    """A device lock at which the engine can be stopped, or made to fail, just before a forward."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._free = threading.Event()
        self._free.set()
        self._error: Exception | None = None

    def stop_at_next(self) -> None:
        self._free.clear()

    def raise_at_next(self, error: Exception) -> None:
        self._error = error

    def wait_until_stopped(self) -> None:
        assert self._stopped.wait(60)

    def let_go(self) -> None:
        self._free.set()

    def __enter__(self) -> None:
        self._lock.acquire()
        if not self._free.is_set():
            self._stopped.set()
            self._free.wait(60)
        if self._error is not None:
            error, self._error = self._error, None
            self._lock.release()
            raise error

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_answers_from_the_named_version_while_versions_come_and_go(start, directory):
    """Three policies change their weights again and again while sessions of all of them go on."""
    engine = start(directory, max_slots=20, iteration_tokens=64)
    weights: dict[tuple[str, int], AdapterWeights] = {}
    sent: dict[str, SampleRequest] = {}
    found: Answers = {}
    lock = threading.Lock()
    all_done = threading.Semaphore(0)

    def deliver(batch):
        with lock:
            for answer in batch:
                assert answer.request_id not in found
                found[answer.request_id] = answer
                all_done.release()

    for wave in range(8):
        for number, name in enumerate(("a", "b", "c")):
            if (wave + number) % 2 == 0:
                weights[name, wave] = adapter(directory, seed=10 * wave + number, rank=2 + number)
                engine.publish(name, wave, weights[name, wave])
        if wave == 5:
            engine.retire("c")
        loaded = engine.loaded()
        requests = [
            ask(
                f"{wave}-{i}",
                prompt(4 + i % 5, i % 3) + ([wave] if i % 4 == 0 else []),
                policy=name,
                policy_version=loaded[name],
                session_id=f"{name}{i % 6}",
                max_tokens=1 + i % 7,
                seed=i,
            )
            for i in range(24)
            for name in [sorted(loaded)[i % len(loaded)]]
        ]
        sent |= {request.request_id: request for request in requests}
        engine.submit(requests, deliver)
    for _ in sent:
        assert all_done.acquire(timeout=60)
    completed = {name: answer for name, answer in found.items() if isinstance(answer, Completion)}
    gone = [answer for answer in found.values() if isinstance(answer, SampleFailure)]
    assert {answer.error.type for answer in gone} <= {"PolicyVersionGoneError"}
    assert len(completed) >= 24
    models = {key: plain_model(directory, own) for key, own in weights.items()}
    for name, completion in completed.items():
        request = sent[name]
        assert completion.policy_version == request.policy_version
        assert_same_logprobs(models[request.policy, completion.policy_version], request, completion)
