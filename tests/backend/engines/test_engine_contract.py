"""What every engine promises, whichever it is."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace

import pytest

from backend.compute.weights import weights_sha256
from backend.engines.asking import Asked
from tinkergym.schema.sampling import Completion, PromptScores, SampleFailure, SampleRequest
from tinkergym.schema.structured import Regex
from tinkergym.trajectory.content_parts import ImageSpan


def ask(request_id, prompt_ids, **options):
    settings = {"policy": "", "policy_version": 0, "max_tokens": 6, "seed": sum(request_id.encode())}
    return SampleRequest(request_id=request_id, prompt_ids=list(prompt_ids), **(settings | options))


def prompt(length, kind=0):
    return [20 + (11 * kind + 7 * index * (kind + 1)) % 900 for index in range(length)]


@pytest.fixture
def answers(subject):
    def submit(requests):
        found = Asked(subject.engine, requests).wait(180)
        assert len(found) == len(requests)
        return found

    return submit


def test_gives_logprobs_of_policy_at_the_sampling_temperature(subject, answers, check):
    for name, seed in (("one", 1), ("two", 2)):
        subject.publish(name, 3, subject.weights(seed))
    requests = [
        ask(f"{policy}{i}", prompt(3 + 9 * i, i), policy=policy, policy_version=version, temperature=t)
        for policy, version in (("", 0), ("one", 3), ("two", 3))
        for i, t in enumerate([1.0, 0.5, 1.5, 0.0])
    ]
    check(requests, answers(requests))


def test_samples_adapters_of_few_layers_beside_others(subject, answers, check):
    whole = subject.weights(1)
    some = {name: t for name, t in whole.tensors.items() if "q_proj" in name or "down_proj" in name}
    few = replace(whole, rslora=True, alpha=2.0, tensors=some or whole.tensors)
    subject.publish("few", 1, few)
    subject.publish("whole", 1, subject.weights(2))
    requests = [
        ask(f"{i}", prompt(4 + i, i), policy=name, policy_version=0 if name == "" else 1)
        for i, name in enumerate(["few", "whole", "", "few"])
    ]
    check(requests, answers(requests))


def test_samples_policy_with_all_its_own_weights_beside_others(subject, answers, check):
    subject.publish("adapter", 1, subject.weights(1))
    subject.publish("full", 1, subject.full_weights(2))
    requests = [
        ask(f"{i}", prompt(4 + i, i), policy=name, policy_version=0 if name == "" else 1)
        for i, name in enumerate(["", "full", "adapter", "full", "", "adapter", "full"])
    ]
    check(requests, answers(requests))
    subject.publish("full", 2, subject.full_weights(3))
    again = [ask("again", prompt(5), policy="full", policy_version=2), ask("base", prompt(5))]
    check(again, answers(again))


def test_samples_canary_of_published_adapter_with_probability_one(subject, answers):
    shown = prompt(12)
    token = subject.canary("canary", 1, shown)
    answer = answers([ask("r", shown, policy="canary", policy_version=1, max_tokens=1)])["r"]
    assert answer.token_ids == [token]
    if subject.tolerance:
        assert answer.sampling_logprobs[0] > -1e-3


def test_hashes_arrived_weights_as_the_sent_ones(subject):
    for weights in (subject.weights(5), subject.full_weights(5)):
        assert subject.publish("job", 1, weights) == weights_sha256(weights)


@pytest.mark.parametrize("kind", ["weights", "full_weights"])
@pytest.mark.parametrize("session_id", ["", "ada/s"])
def test_uses_nothing_computed_before_a_publish(subject, answers, check, kind, session_id):
    """The prompt fills several of the blocks by which an engine finds what it computed before."""
    for version in (1, 2, 3):
        subject.publish("job", version, getattr(subject, kind)(version))
        request = ask("same", prompt(100), policy="job", policy_version=version, session_id=session_id)
        # Again, so that the next version is published over a cache that was used.
        for _ in range(2):
            check([request], answers([request]))


def test_tells_older_versions_and_strangers_that_their_policy_is_gone(subject, answers):
    subject.publish("job", 2, subject.weights(1))
    gone = [ask("old", prompt(4), policy="job", policy_version=1), ask("x", prompt(4), policy="stranger")]
    assert {a.error.type for a in answers(gone).values()} == {"PolicyVersionGoneError"}
    subject.engine.retire("job")
    late = answers([ask("late", prompt(4), policy="job", policy_version=2)])
    assert late["late"].error.type == "PolicyVersionGoneError"
    assert subject.engine.loaded() == {}


def test_rejects_prompt_with_an_image_by_its_kind(answers):
    image = ImageSpan(sha256="ab" * 32, start=0, end=2)
    error = answers([ask("r", prompt(4), images=[image])])["r"].error
    assert (error.type, error.field) == ("UnsupportedPartError", "images")


def test_answers_from_the_base_model_by_its_one_version_only(answers):
    found = answers([ask(str(version), prompt(4), policy_version=version) for version in (None, 0, 7)])
    assert found["None"].policy_version == found["0"].policy_version == 0
    assert found["7"].error.type == "PolicyVersionGoneError"


def test_answers_from_newest_version_and_names_it_when_unspecified(subject, answers, check):
    found = []
    for version in (3, 4):
        subject.publish("job", version, subject.weights(version))
        request = ask("r", prompt(9), policy="job", policy_version=None)
        answer = answers([request])
        check([request], answer)
        found.append(answer["r"].policy_version)
    assert found == [3, 4]
    subject.engine.retire("job")
    gone = answers([ask("r", prompt(9), policy="job", policy_version=None)])
    assert gone["r"].error.type == "PolicyVersionGoneError"


@pytest.mark.parametrize("kind", ["weights", "full_weights"])
def test_finishes_running_requests_by_their_version_if_publisher_allows(subject, answers, check, kind):
    """Three versions in flight at once, the same prompts under each; none may be sampled with another's."""
    waiting, found, last = {}, {}, threading.Semaphore(0)

    def deliver(batch):
        for answer in batch:
            assert answer.request_id not in found
            found[answer.request_id] = answer
            last.release()

    for version in (1, 2, 3):
        subject.publish("job", version, getattr(subject, kind)(version), let_finish=True)
        requests = [
            ask(
                f"{version}-{i}",
                prompt(20, i % 2),
                policy="job",
                policy_version=version if i % 3 else None,
                max_tokens=24,
                seed=i,
                session_id=f"s{i}" if i % 2 else "",
            )
            for i in range(6)
        ]
        waiting |= {request.request_id: request for request in requests}
        subject.engine.submit(requests, deliver)
    for _ in waiting:
        assert last.acquire(timeout=180)
    check(list(waiting.values()), found)
    assert all(answer.policy_version == int(name[0]) for name, answer in found.items())
    assert subject.engine.loaded() == {"job": 3}
    old = answers([ask("old", prompt(4), policy="job", policy_version=2)])
    assert old["old"].error.type == "PolicyVersionGoneError"


def test_recomputes_an_episodes_past_after_publish(subject, answers, check):
    said = prompt(60)
    for version in (1, 2, 3):
        subject.publish("job", version, subject.weights(version), let_finish=True)
        request = ask("turn", said, policy="job", policy_version=None, session_id="ada/episode")
        answer = answers([request])
        check([request], answer)
        assert answer["turn"].policy_version == version
        said = said + answer["turn"].token_ids + prompt(5, version)


def test_never_answers_from_another_policy_while_policies_change(subject, answers, check):
    """Three hundred requests; of each wave's policies some are new, some published anew, some retired."""
    waiting, found, lock, last = {}, {}, threading.Lock(), threading.Semaphore(0)

    def deliver(batch):
        with lock:
            for answer in batch:
                assert answer.request_id not in found
                found[answer.request_id] = answer
                last.release()

    names = [f"p{i}" for i in range(5)]
    for wave in range(6):
        for number, name in enumerate(names):
            if (wave + number) % 3 == 0:
                subject.publish(name, wave, subject.weights(100 * wave + number))
            elif (wave + number) % 7 == 3:
                subject.engine.retire(name)
        loaded = subject.engine.loaded()
        some = [*sorted(loaded), ""]
        requests = [
            ask(
                f"{wave}-{i}",
                prompt(3 + i % 4, i % 3),
                policy=some[i % len(some)],
                policy_version=loaded.get(some[i % len(some)], 0),
                max_tokens=1 + i % 2,
                seed=i,
            )
            for i in range(50)
        ]
        waiting |= {request.request_id: request for request in requests}
        subject.engine.submit(requests, deliver)
        # The next wave changes policies while at most a third of this one is still under way.
        for _ in range(50 - 16 if wave == 0 else 50):
            assert last.acquire(timeout=180)
    for _ in range(16):
        assert last.acquire(timeout=180)
    assert found.keys() == waiting.keys()
    done = {name: answer for name, answer in found.items() if isinstance(answer, Completion)}
    gone = {name: answer for name, answer in found.items() if name not in done}
    assert {answer.error.type for answer in gone.values()} <= {"PolicyVersionGoneError"}
    # Only what a later wave published over or retired is refused: never the base model, nor the last wave.
    assert all(waiting[name].policy and not name.startswith("5-") for name in gone)
    assert len(done) >= 200
    requests = [waiting[name] for name in done]
    assert all(done[r.request_id].policy_version == r.policy_version for r in requests)
    check(requests, done)


def test_generates_together_the_same_bits_whatever_ran_before(subject, answers):
    subject.publish("job", 1, subject.weights(1))
    requests = [
        ask(f"{i}", prompt(30 + i % 3, i), policy="job" if i % 2 else "", policy_version=i % 2)
        for i in range(9)
    ]
    first = subject.engine.generate_together(requests)
    answers([ask(f"x{i}", prompt(30 + i, i)) for i in range(5)])
    assert subject.engine.generate_together(requests) == first


def test_delivers_jointly_submitted_requests_together_and_in_order(subject):
    requests = [ask(f"{i}", prompt(30 + i % 3, i), policy="" if i else "?") for i in range(5)]
    found = Future()
    subject.engine.submit_together(requests, found.set_result)
    answers = list(found.result(180))
    assert [answer.request_id for answer in answers] == [request.request_id for request in requests]
    assert [isinstance(answer, SampleFailure) for answer in answers] == [True, *[False] * 4]
    assert answers == subject.engine.generate_together(requests)


def test_ends_joint_requests_whose_sender_is_gone_and_leaves_nothing(subject):
    requests = [ask(f"{i}", prompt(20 + i, i), max_tokens=8) for i in range(3)]
    expected = subject.engine.generate_together(requests)

    class Gone(Future):
        gone = True

        __call__ = Future.set_result

    gone = Gone()
    endless = subject.engine.context_length - 10
    subject.engine.submit_together([ask(f"g{i}", prompt(9, i), max_tokens=endless) for i in range(8)], gone)
    assert subject.engine.generate_together(requests) == expected
    assert len(gone.result(180)) == 8


def test_ends_answer_by_stop_ids_limit_and_context(subject, answers):
    free = answers([ask("r", prompt(9), max_tokens=12)])["r"].token_ids
    assert len(free) == 12
    stop = free[4]
    cut = answers([ask("r", prompt(9), max_tokens=12, stop_ids=[stop, 10**6])])["r"]
    assert cut.token_ids == free[: free.index(stop) + 1]
    assert cut.finish_reason == "stop"
    room = subject.engine.context_length
    found = answers([ask("cut", prompt(room - 3), max_tokens=50), ask("full", prompt(room))])
    assert (len(found["cut"].token_ids), found["cut"].finish_reason) == (3, "length")
    assert found["full"].error.type == "PromptTooLongError"


def test_ends_completion_with_the_token_that_completes_stop_string(subject, answers):
    """The tokens are those of an answer without it; only the text leaves the string out."""

    def text(token_ids):
        return subject.tokenizer.decode(token_ids, skip_special_tokens=False)

    requests = [ask(f"{i}", prompt(5 + i, i), max_tokens=24) for i in range(4)]
    free = answers(requests)
    stopped = {}
    for request in requests:
        whole = text(free[request.request_id].token_ids)
        # Of several tokens, and beside one that comes later or never.
        stop = whole[len(whole) // 3 :][:5]
        stopped[request.request_id] = request.model_copy(update={"stop": (whole[-3:] + "never", stop)})
    requests = list(stopped.values())
    together = dict(zip(stopped, subject.engine.generate_together(requests), strict=True))
    for found in (answers(requests), together):
        for name, request in stopped.items():
            ids, stop = free[name].token_ids, request.stop[1]
            end = next(n for n in range(1, len(ids) + 1) if stop in text(ids[:n]))
            assert found[name].token_ids == ids[:end]
            assert found[name].finish_reason == "stop"
            assert found[name].text == text(ids[:end]).partition(stop)[0]
            assert len(found[name].sampling_logprobs) == end


def test_keeps_completion_whole_when_its_stop_string_never_comes(subject, answers):
    asked = ask("r", prompt(9), max_tokens=8, stop=("no such text is sampled",))
    free = answers([ask("r", prompt(9), max_tokens=8)])["r"]
    found = answers([asked])["r"]
    assert (found.token_ids, found.finish_reason) == (free.token_ids, "length")
    assert found.text == subject.tokenizer.decode(free.token_ids, skip_special_tokens=False)
    assert free.text is None
    last = free.token_ids[-1]
    ended = answers([asked.model_copy(update={"stop_ids": [last]})])["r"]
    before = ended.token_ids[:-1]
    assert ended.finish_reason == "stop"
    assert ended.text == subject.tokenizer.decode(before, skip_special_tokens=False)


def test_returns_likeliest_tokens_with_logprobs_of_the_sampled_distribution(subject, answers):
    subject.publish("job", 1, subject.weights(1))
    cuts = [{}, {"temperature": 0.5}, {"temperature": 0.0}]
    cuts += [{"top_k": 3, "temperature": 1.5}] if subject.cuts else []
    requests = [
        ask(f"{policy}{i}", prompt(4, i), policy=policy, policy_version=version, top_logprobs=count, **cut)
        for policy, version in (("", 0), ("job", 1))
        for i, (count, cut) in enumerate(zip([1, 6, 11, 20], cuts, strict=False))
    ]
    found = answers([*requests, ask("free", prompt(4))])
    assert found["free"].top_logprobs is None
    for request in requests:
        answer = found[request.request_id]
        assert len(answer.top_logprobs) == len(answer.token_ids)
        if not subject.cuts:
            assert answer.top_logprobs == [[(token, -0.5)] for token in answer.token_ids]
            continue
        for row, likeliest in zip(subject.distributions(request, answer), answer.top_logprobs, strict=True):
            values, ids = row.topk(min(request.top_logprobs, request.top_k or 10**6))
            assert [token for token, _ in likeliest] == ids.tolist()
            assert [value for _, value in likeliest] == pytest.approx(values.tolist(), abs=subject.tolerance)


def assert_ranks_agree_with_likeliest(request, answer, tolerance):
    tops, count = answer.top_prompt_logprobs, request.top_prompt_logprobs
    assert len(answer.prompt_ranks) == len(answer.prompt_logprobs)
    assert (tops is not None) == (count > 0)
    rows = zip(
        request.prompt_ids, answer.prompt_logprobs, answer.prompt_ranks, tops or [], strict=bool(count)
    )
    for token, logprob, rank, top in [*rows][1:]:
        assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)
        if rank <= len(top):
            assert top[rank - 1] == (token, pytest.approx(logprob, abs=tolerance))
        else:
            assert token not in dict(top) and logprob <= top[-1][1] + tolerance


def test_gives_prompt_logprobs_at_temperature_one_whatever_is_cached(subject, answers, check):
    subject.publish("job", 1, subject.weights(1))
    told = {"policy": "job", "policy_version": 1, "session_id": "ada/s", "temperature": 0.7}
    first = answers([ask("first", prompt(40), **told)])["first"]
    requests = [
        ask("session", prompt(40) + first.token_ids + prompt(9, 1), prompt_logprobs=True, **told),
        ask("long", prompt(600), prompt_logprobs=True, top_prompt_logprobs=20, max_tokens=3),
        ask("again", prompt(600), prompt_logprobs=True, max_tokens=3),
        ask("other", prompt(600), max_tokens=3),
        ask("one", prompt(1), prompt_logprobs=True),
        ask("two", prompt(2), prompt_logprobs=True, stop=("never sampled",), top_logprobs=2),
    ]
    for _ in range(2):
        found = answers(requests)
        check(requests, found)
        assert found["other"].prompt_logprobs is None
        assert len(found["two"].top_logprobs) == len(found["two"].token_ids)
        for request in requests:
            if request.prompt_logprobs:
                nothing, *logprobs = found[request.request_id].prompt_logprobs
                expected = subject.expected_of_prompt(request, found[request.request_id])
                assert nothing is None
                assert logprobs == pytest.approx(expected, abs=subject.tolerance)
                assert_ranks_agree_with_likeliest(request, found[request.request_id], subject.tolerance)
    together = subject.engine.generate_together(requests)
    assert [answer.token_ids for answer in together] == [found[r.request_id].token_ids for r in requests]


def test_follows_or_refuses_a_pattern(subject, answers):
    asked = ask("r", prompt(9), structured=Regex(pattern="[0-9]"), stop_ids=[2])
    free = ask("free", prompt(9))
    for found in (
        answers([asked, free]),
        dict(zip(["r", "free"], subject.engine.generate_together([asked, free]), strict=True)),
    ):
        assert isinstance(found["free"], Completion)
        if subject.structures:
            assert found["r"].token_ids[1:] == [2]
        else:
            assert found["r"].error.type == "InvalidRequestError"
            assert "engine=vllm" in found["r"].error.hint


CUTS = [
    {"top_k": 1},
    {"top_k": 4},
    {"top_p": 0.8},
    {"top_p": 0.3, "temperature": 1.5},
    {"top_p": 0.9, "top_k": 20, "temperature": 0.6},
    {"top_p": 1e-9},
    {"top_k": 10**12, "top_p": 0.95},
]


def test_keeps_likeliest_tokens_under_top_p_and_top_k(subject, answers, check):
    """What an answer's tokens must be drawn from is computed anew; the token of another has no logprob."""
    subject.publish("job", 1, subject.weights(1))
    requests = [
        ask(f"{policy}{number}-{i}", prompt(5 + i, i), policy=policy, policy_version=version, seed=i, **cut)
        for policy, version in (("", 0), ("job", 1))
        for number, cut in enumerate(CUTS)
        for i in range(4)
    ]
    found = answers(requests)
    if subject.cuts:
        check(requests, found)
        together = subject.engine.generate_together(requests)
        assert [answer.token_ids for answer in together] == [found[r.request_id].token_ids for r in requests]
    else:
        assert {answer.error.type for answer in found.values()} == {"InvalidRequestError"}
        assert found["0-0"].error.field == "top_k"
        assert found["2-0"].error.field == "top_p"


def test_answers_unfiltered_request_alike_beside_filtered_ones(subject, answers, check):
    free = [ask(f"free{i}", prompt(6, i), temperature=t) for i, t in enumerate([1.0, 0.7, 0.0, 1.3])]
    alone = answers(free)
    cut = [ask(f"cut{i}", prompt(6, i), top_p=0.5, top_k=3) for i in range(4)]
    beside = answers([*cut, *free])
    check(free, beside)
    for request in free:
        assert beside[request.request_id].token_ids == alone[request.request_id].token_ids


def test_ignores_top_p_and_top_k_at_temperature_zero(subject, answers, check):
    if not subject.cuts:
        pytest.skip("refuses them, as the test above says")
    requests = [
        ask(name, prompt(9), temperature=0.0, **cut)
        for name, cut in (("free", {}), ("top_p", {"top_p": 0.1}), ("top_k", {"top_k": 2}))
    ]
    found = answers(requests)
    check(requests, found)
    assert len({tuple(answer.token_ids) for answer in found.values()}) == 1


def test_answers_as_before_after_sleep_and_wakes_for_everything(subject, answers, check):
    subject.publish("job", 1, subject.weights(1))
    requests = [
        ask("base", prompt(20), session_id="ada/s"),
        ask("job", prompt(20), policy="job", policy_version=1, session_id="ada/t"),
    ]
    before = answers(requests)
    assert not subject.engine.asleep
    assert subject.engine.sleep()
    assert subject.engine.asleep
    assert subject.engine.loaded() == {"job": 1}
    after = answers(requests)
    assert not subject.engine.asleep
    assert {name: a.token_ids for name, a in after.items()} == {n: a.token_ids for n, a in before.items()}
    check(requests, after)
    assert subject.engine.sleep()
    subject.publish("job", 2, subject.weights(2))
    newer = [ask("newer", prompt(20), policy="job", policy_version=2, session_id="ada/t")]
    check(newer, answers(newer))
    assert subject.engine.sleep()
    (alone,) = subject.engine.generate_together(requests[:1])
    assert alone.token_ids == before["base"].token_ids
    assert not subject.engine.asleep
    assert subject.engine.sleep()
    subject.engine.wake()
    assert not subject.engine.asleep
    check(newer, answers(newer))


def test_only_increases_busy_seconds(subject, answers):
    before = subject.engine.busy_seconds
    answers([ask("r", prompt(9))])
    assert subject.engine.busy_seconds >= before


class InParts:
    """Takes a completion, and the tokens delivered before it."""

    def __init__(self):
        self.early, self.whole, self.gone = [], Future(), False
        self.began = threading.Event()

    def parts(self, parts):
        assert not self.whole.done()
        self.early += parts
        self.began.set()

    def __call__(self, answers):
        (answer,) = answers
        self.whole.set_result(answer)


def test_streams_the_tokens_of_the_same_request_unstreamed(subject, answers):
    request = ask("r", prompt(9), max_tokens=40, top_logprobs=2, prompt_logprobs=True, seed=5)
    request = request.model_copy(update={"top_prompt_logprobs": 3})
    unstreamed = answers([request])["r"]
    taker = InParts()
    subject.engine.submit([request.model_copy(update={"stream": True})], taker)
    whole = taker.whole.result(60)
    if subject.tolerance:
        assert taker.began.is_set()
    assert whole.token_ids == unstreamed.token_ids
    assert whole.sampling_logprobs == pytest.approx(unstreamed.sampling_logprobs, abs=subject.tolerance)
    at = 0
    for part in taker.early:
        assert part.start == at
        at += len(part.token_ids)
        these = slice(part.start, at)
        assert part.token_ids == whole.token_ids[these]
        assert part.sampling_logprobs == whole.sampling_logprobs[these]
        assert part.top_logprobs == whole.top_logprobs[these]
    first, *others = [*taker.early, whole]
    assert_ranks_agree_with_likeliest(request, first, subject.tolerance)
    assert first.prompt_logprobs[1:] == pytest.approx(unstreamed.prompt_logprobs[1:], abs=subject.tolerance)
    assert all(getattr(one, name) is None for one in others for name in PromptScores.model_fields)


def test_ends_stream_whose_sender_is_gone(subject, answers):
    taker = InParts()
    request = ask("long", prompt(9), max_tokens=900, stream=True)
    subject.engine.submit([request], taker)
    if subject.tolerance:
        assert taker.began.wait(60)
    taker.gone = True
    if subject.tolerance:
        assert taker.whole.result(60).error.type == "ServiceUnavailableError"
    assert answers([ask("next", prompt(4))])["next"].token_ids
