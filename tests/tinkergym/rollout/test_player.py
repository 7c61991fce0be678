from tests.tinkergym.rollout.walks import YES, Walk, plans, played
from tinkergym.errors import ServiceUnavailableError
from tinkergym.schema.events import ErrorView
from tinkergym.schema.jobs.parts import Limits
from tinkergym.schema.sampling import Completion, SampleFailure
from tinkergym.trajectory.trajectory import StopReason


class Sampler:
    """Answers with whatever a function makes of a request."""

    def __init__(self, answer):
        self.answer = answer

    def submit(self, requests, deliver):
        for request in requests:
            answer = self.answer(request)
            if answer is not None:
                deliver([answer])

    def close(self):
        pass


def test_ends_episode_with_the_samplers_error():
    def answer(request):
        if request.session_id == "e1":
            return SampleFailure(
                request_id=request.request_id, error=ErrorView(type="PolicyVersionGoneError", message="gone")
            )
        return YES._complete(request)

    trajectories = played(plans(3), sampler=Sampler(answer))
    assert trajectories["e1"].stop_reason is StopReason.SAMPLING_FAILED
    assert trajectories["e1"].error == "PolicyVersionGoneError: gone"
    assert {trajectories["e0"].stop_reason, trajectories["e2"].stop_reason} == {StopReason.TERMINATED}


def test_fails_requests_given_to_a_raising_sampler():
    def answer(request):
        raise ServiceUnavailableError("no engine")

    for trajectory in played(plans(3), sampler=Sampler(answer)).values():
        assert trajectory.stop_reason is StopReason.SAMPLING_FAILED
        assert trajectory.error == "ServiceUnavailableError: no engine"


def test_ends_episode_on_unusable_completion():
    def answer(request):
        return Completion(
            request_id=request.request_id,
            token_ids=[1, 2],
            sampling_logprobs=[-1.0],
            finish_reason="stop",
            policy_version=0,
        )

    (trajectory,) = played(plans(1), sampler=Sampler(answer)).values()
    assert trajectory.stop_reason is StopReason.SAMPLING_FAILED
    assert "2 tokens" in trajectory.error


def test_ends_episode_whose_time_runs_out_while_awaiting_answer():
    limits = Limits(episode_timeout_seconds=0.1)
    (trajectory,) = played(plans(1, limits=limits), sampler=Sampler(lambda request: None)).values()
    assert trajectory.stop_reason is StopReason.EPISODE_TIMEOUT
    assert not trajectory.completed


def test_keeps_turns_of_episode_whose_time_runs_out_between_them():
    replies = []

    class Endless(Walk):
        def reply(self, action):
            replies.append(action)
            return "on and on", 1.0, False

    # A second per reply, however long it takes.
    (trajectory,) = played(
        plans(1, limits=Limits(episode_timeout_seconds=3.0)),
        lambda reference: Endless(),
        clock=lambda: float(len(replies)),
    ).values()
    assert trajectory.stop_reason is StopReason.EPISODE_TIMEOUT
    assert trajectory.truncated
    assert len(trajectory.turns) == 3
    assert trajectory.sampled_tokens == sum(turn.end - turn.start for turn in trajectory.turns)


def test_ignores_answers_that_come_late_or_twice():
    late = []

    class Slow:
        def submit(self, requests, deliver):
            answers = [YES._complete(request) for request in requests]
            deliver(late + answers + answers)
            late.extend(answers)

        def close(self):
            pass

    assert {t.stop_reason for t in played(plans(5), sampler=Slow()).values()} == {StopReason.TERMINATED}


def test_samples_together_requests_that_arrive_together():
    batches = []

    class Watching:
        def submit(self, requests, deliver):
            batches.append(len(requests))
            YES.submit(requests, deliver)

        def close(self):
            pass

    # Time stands still, as the threads of a busy machine come one by one.
    trajectories = played(plans(64), sampler=Watching(), clock=lambda: 0.0)
    turns = sum(len(trajectory.turns) for trajectory in trajectories.values())
    assert sum(batches) == turns
    assert len(batches) < turns / 2
