from backend.episodes.captured_tokens import CapturedTokens
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.testing.made_up_episodes import one_turn_episode
from tinkergym.trajectory.ledger import NO_DIGEST, completion_digest


def request(request_id="r", session_id="ada/lease-1.1"):
    return SampleRequest(
        request_id=request_id, policy="job-1", prompt_ids=[1], max_tokens=4, session_id=session_id
    )


def completion(token_ids, request_id="r", version=0):
    return Completion(
        request_id=request_id,
        token_ids=token_ids,
        sampling_logprobs=[-0.5] * len(token_ids),
        finish_reason="stop",
        policy_version=version,
    )


def handed_in(lease_id="lease-1"):
    # Its one answer is the token 2, of version 0.
    return EpisodeResult(episode_id="job-1:1:0", lease_id=lease_id, trajectories=[one_turn_episode()])


def test_knows_returned_completions_of_a_lease_when_handed_in():
    captured, arrived = CapturedTokens(), []
    deliver = captured.watching(arrived.extend, [request()])
    deliver([completion([2])])
    assert [one.token_ids for one in arrived] == [[2]]
    assert captured.of(handed_in()) == completion_digest(0, [2])


def test_tells_apart_other_tokens_versions_and_leases():
    captured = CapturedTokens()
    captured.watching(lambda answers: None, [request()])([completion([3]), completion([2], version=1)])
    assert captured.of(handed_in()) == NO_DIGEST
    captured.watching(lambda answers: None, [request()])([completion([2])])
    assert captured.of(handed_in("lease-2")) == NO_DIGEST


def test_watches_no_requests_outside_episodes():
    def deliver(answers):
        pass

    assert CapturedTokens().watching(deliver, [request(session_id="")]) is deliver


def test_sees_through_a_caller_that_hung_up():
    class Gone:
        gone = True

        def __call__(self, answers):
            pass

    assert CapturedTokens().watching(Gone(), [request()]).gone
