from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from backend.episodes.boards import Boards
from backend.episodes.episode_board import EpisodeBoard
from backend.episodes.episode_requests import step_requests
from backend.episodes.job_board import MOST_WORKER_DEATHS, JobBoard
from backend.errors import LeaseLostError
from backend.learner.sequences import TokenLimits
from tests.backend.seats import result_of, two_seats
from tinkergym.algorithms import GRPO
from tinkergym.errors import (
    InvalidRequestError,
    ServiceUnavailableError,
    StorageFullError,
    TooManyFailedEpisodesError,
)
from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult, LeaseRequest, SubmitRequest
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.testing.made_up_episodes import one_turn_episode
from tinkergym.trajectory.trajectory import Segment, StopReason, Trajectory

LIMITS = TokenLimits(vocabulary=256, context_length=64)


def result(request: EpisodeRequest) -> EpisodeResult:
    trajectory = Trajectory(
        segments=[],
        turns=[],
        terminated=True,
        truncated=False,
        stop_reason=StopReason.TERMINATED,
        seed=request.seed,
    )
    return EpisodeResult(episode_id=request.episode_id, lease_id=request.lease_id, trajectories=[trajectory])


def unanswered(tokens: int) -> Segment:
    return Segment(token_ids=[1] * tokens, loss_mask=[False] * tokens, sampling_logprobs=[None] * tokens)


def ask(most: int = 10, wait: float = 0.0, worker_id: str = "w", renew: tuple[str, ...] = ()) -> LeaseRequest:
    return LeaseRequest(worker_id=worker_id, max_episodes=most, wait_seconds=wait, renew=list(renew))


def hand_in(boards: Boards, requests: list[EpisodeRequest], job_id: str = "") -> list[str]:
    return boards.submit(
        SubmitRequest(worker_id="w", results=[result(request) for request in requests]), job_id
    ).verdicts


def post(boards: Boards, job_id: str, step: int = 1) -> None:
    algorithm = GRPO(group_size=2, groups_per_step=2)
    spec = RLSpec(environment=EnvironmentRef(id="bandit/Bandit-v0"), steps=3, algorithm=algorithm)
    boards.post(job_id, step, step_requests(job_id, spec, step))


class Job:
    """One job's board, and what was stored for it."""

    def __init__(
        self,
        boards: Boards,
        job_id: str,
        *,
        server: bool = True,
        failure: Exception | None = None,
        owner: str = "",
        environment: str = "",
    ):
        self.stored: list[str] = []
        self.failure = failure
        self.board = EpisodeBoard(lease_seconds=30.0)
        boards.open(
            JobBoard(
                name=job_id,
                board=self.board,
                save=self.save,
                for_server_workers=server,
                limits=LIMITS,
                tenant=owner,
                environment=environment,
            )
        )
        boards.step_recorded(job_id, 0)
        post(boards, job_id)

    def save(self, step: int, results) -> None:
        if self.failure is not None:
            raise self.failure
        self.stored += [result.episode_id for result in results]


@pytest.fixture
def boards():
    boards = Boards()
    yield boards
    boards.shut()


def test_finishes_step_when_all_its_results_are_stored(boards):
    job = Job(boards, "job-1")
    requests = boards.lease(ask()).episodes
    assert hand_in(boards, requests[:3]) == ["accepted"] * 3
    assert boards.wait("job-1", 1, 0.0) == "waiting"
    hand_in(boards, requests[3:])
    assert boards.wait("job-1", 1, 0.0) == "done"
    assert sorted(job.stored) == sorted(request.episode_id for request in requests)


def test_leases_from_each_job_in_turn_but_not_from_clients(boards):
    Job(boards, "job-1")
    Job(boards, "job-2")
    Job(boards, "job-3", server=False)
    first, second = boards.lease(ask(most=1)).episodes, boards.lease(ask(most=1)).episodes
    assert {request.job_id for request in first + second} == {"job-1", "job-2"}
    assert {request.job_id for request in boards.lease(ask(most=100)).episodes} == {"job-1", "job-2"}


def test_serves_waiting_worker_as_soon_as_a_step_begins(boards):
    Job(boards, "job-1")
    boards.lease(ask())
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(boards.lease, ask(wait=30.0))
        post(boards, "job-1", step=2)
        assert {request.step for request in waiting.result().episodes} == {2}


def test_keeps_early_worker_waiting_for_its_job(boards):
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(boards.lease, ask(wait=30.0), "job-1")
        Job(boards, "job-1")
        assert len(waiting.result().episodes) == 4


def test_tells_worker_immediately_that_its_job_is_gone(boards):
    Job(boards, "job-1")
    lease_id = boards.lease(ask(), "job-1").episodes[0].lease_id
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(boards.lease, ask(wait=30.0, renew=(lease_id,)), "job-1")
        boards.close("job-1")
        assert waiting.result().lost == [lease_id]


def test_gives_nothing_to_waiting_call_of_dead_worker(boards):
    Job(boards, "job-1")
    boards.lease(ask(worker_id="dead"))
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(boards.lease, ask(wait=30.0, worker_id="dead"))
        assert boards.forget_worker("dead") == 4
        assert waiting.result().episodes == []
    assert len(boards.lease(ask(worker_id="another")).episodes) == 4


def test_passes_an_ending_workers_episodes_to_the_next(boards):
    Job(boards, "job-1", server=False)
    given = boards.lease(ask(worker_id="ends"), "job-1").episodes
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(boards.lease, ask(wait=30.0, worker_id="ends"), "job-1")
        kept = given[0].lease_id
        boards.lease(
            LeaseRequest(worker_id="ends", max_episodes=0, wait_seconds=0, renew=[kept], leaving=True),
            "job-1",
        )
        assert waiting.result().episodes == []
    assert len(boards.lease(ask(worker_id="next"), "job-1").episodes) == len(given) - 1
    assert hand_in(boards, given[:1]) == ["accepted"]


def test_reissues_episodes_only_of_vanished_worker_of_that_job(boards):
    Job(boards, "job-1", server=False)
    Job(boards, "job-2", server=False)
    for job_id in ("job-1", "job-2"):
        assert boards.lease(ask(worker_id="w"), job_id).episodes
    boards.vanished("w", "job-1")
    boards.vanished("w", "job-3")
    assert len(boards.lease(ask(worker_id="next"), "job-1").episodes) == 4
    assert boards.lease(ask(worker_id="next"), "job-2").episodes == []


def test_remembers_only_the_last_of_dead_workers(boards):
    Job(boards, "job-1")
    for number in range(1500):
        boards.forget_worker(f"dead-{number}")
    assert boards.lease(ask(worker_id="dead-600")).episodes == []
    assert len(boards.lease(ask(worker_id="dead-0")).episodes) == 4


def test_acknowledges_results_after_previous_step_is_recorded(boards):
    job = Job(boards, "job-1")
    hand_in(boards, boards.lease(ask()).episodes)
    post(boards, "job-1", step=2)
    requests = boards.lease(ask()).episodes
    job.stored.clear()
    recorded = threading.Event()
    with ThreadPoolExecutor() as threads:
        verdicts = threads.submit(hand_in, boards, requests)
        assert job.stored == []
        recorded.set()
        boards.step_recorded("job-1", 1)
        assert verdicts.result() == ["accepted"] * 4


@pytest.mark.parametrize("first_is_stored", [True, False])
def test_answers_repeated_result_once_the_first_is_durable(boards, first_is_stored):
    job = Job(boards, "job-1")
    requests = boards.lease(ask()).episodes
    begun, go_on, saved = threading.Event(), threading.Event(), []

    def save(step, results):
        saved.append(len(results))
        if len(saved) == 1:
            begun.set()
            assert go_on.wait(60.0)
            if not first_is_stored:
                raise ServiceUnavailableError("busy")

    boards.close("job-1")
    boards.open(JobBoard(name="job-1", board=job.board, save=save, for_server_workers=True, limits=LIMITS))
    boards.step_recorded("job-1", 0)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(hand_in, boards, requests)
        assert begun.wait(60.0)
        repeated = threads.submit(hand_in, boards, requests)
        with pytest.raises(TimeoutError):
            repeated.result(timeout=0.1)
        go_on.set()
        if first_is_stored:
            assert (first.result(), repeated.result()) == (["accepted"] * 4, ["duplicate"] * 4)
        else:
            assert isinstance(first.exception(), ServiceUnavailableError)
            assert repeated.result() == ["accepted"] * 4
    assert saved == ([4] if first_is_stored else [4, 4])


def test_bounds_each_seat_by_the_context_of_its_own_model(boards):
    def played(request: EpisodeRequest, **tokens: int) -> EpisodeResult:
        long = {agent: unanswered(count) for agent, count in tokens.items()}
        return result_of(
            request,
            *(
                result(request).trajectories[0].model_copy(update={"agent": agent, "segments": [segment]})
                for agent, segment in long.items()
            ),
        )

    short, board = TokenLimits(vocabulary=256, context_length=10), EpisodeBoard(lease_seconds=30.0)
    boards.open(
        JobBoard(
            name="job-1",
            board=board,
            save=lambda step, results: None,
            for_server_workers=True,
            limits=LIMITS,
            other_limits={"short": short},
        )
    )
    boards.step_recorded("job-1", 0)
    algorithm = GRPO(group_size=2, groups_per_step=1)
    spec = RLSpec(environment=EnvironmentRef(id="board/TicTacToe-v0"), steps=3, algorithm=algorithm)
    requests = []
    for request in step_requests("job-1", spec, 1):
        seated = two_seats(request)
        other = {"o": seated.seats["o"].model_copy(update={"model": "short"})}
        requests.append(seated.model_copy(update={"seats": {**seated.seats, **other}}))
    boards.post("job-1", 1, requests)
    first, second = boards.lease(ask()).episodes
    reply = boards.submit(SubmitRequest(worker_id="w", results=[played(first, x=64, o=10)]), "job-1")
    assert reply.verdicts == ["accepted"]
    with pytest.raises(InvalidRequestError) as caught:
        boards.submit(SubmitRequest(worker_id="w", results=[played(second, x=64, o=11)]), "job-1")
    assert caught.value.field == "results.trajectories"


def test_drops_result_whose_job_ends_before_its_previous_step(boards):
    job = Job(boards, "job-1")
    hand_in(boards, boards.lease(ask()).episodes)
    post(boards, "job-1", step=2)
    requests = boards.lease(ask()).episodes
    job.stored.clear()
    with ThreadPoolExecutor() as threads:
        verdicts = threads.submit(hand_in, boards, requests)
        with pytest.raises(TimeoutError):
            verdicts.result(timeout=0.1)
        boards.close("job-1")
        assert verdicts.result() == ["stale"] * 4
    assert job.stored == []


def test_reports_full_disk_to_the_worker_and_job(boards):
    Job(boards, "job-1", failure=StorageFullError("no space left"))
    requests = boards.lease(ask()).episodes
    with pytest.raises(StorageFullError):
        hand_in(boards, requests)
    with pytest.raises(StorageFullError):
        boards.wait("job-1", 1, 0.0)


def test_calls_results_stale_for_a_job_that_another_took(boards):
    Job(boards, "job-1", failure=LeaseLostError("lost"))
    assert hand_in(boards, boards.lease(ask()).episodes) == ["stale"] * 4


def test_notices_worker_that_asks_for_nothing_more():
    now = [0.0]
    boards = Boards(clock=lambda: now[0])
    boards.lease(ask(worker_id="env-1"))
    now[0] = 20.0
    boards.lease(ask(worker_id="env-2"))
    assert boards.report(10.0).silent == ["env-1"]
    boards.forget_worker("env-1")
    assert boards.report(10.0).silent == []


def test_refuses_unsound_result_but_keeps_its_episode_open(boards):
    job = Job(boards, "job-1")
    sound, spoiled = (result(request) for request in boards.lease(ask(most=2)).episodes)
    record = one_turn_episode(1.0)
    twice = record.model_copy(update={"turns": record.turns * 2})
    spoiled = spoiled.model_copy(update={"trajectories": [twice]})
    with pytest.raises(InvalidRequestError) as caught:
        boards.submit(SubmitRequest(worker_id="w", results=[sound, spoiled]))
    assert caught.value.field == "results.trajectories"
    assert job.stored == []
    mended = spoiled.model_copy(update={"trajectories": [record]})
    reply = boards.submit(SubmitRequest(worker_id="w", results=[sound, mended]))
    assert reply.verdicts == ["accepted"] * 2


def test_binds_a_worker_to_the_tenant_it_served_first(boards):
    Job(boards, "job-1", owner="ada")
    Job(boards, "job-2", owner="eve")
    first = boards.lease(ask(worker_id="env-1")).episodes
    second = boards.lease(ask(worker_id="env-2")).episodes
    assert [{one.job_id for one in some} for some in (first, second)] == [{"job-1"}, {"job-2"}]
    boards.close("job-1")
    assert boards.lease(ask(worker_id="env-1", renew=(first[0].lease_id,))).lost == [first[0].lease_id]
    assert boards.lease(ask(worker_id="env-1")).episodes == []
    report = boards.report(10.0)
    assert report.owners == {"env-1": "ada", "env-2": "eve"}
    assert report.wanted == {"eve"}


def test_blames_only_a_job_in_a_call_for_worker_death(boards):
    for job_id in ("job-1", "job-2"):
        Job(boards, job_id)
    for number in range(MOST_WORKER_DEATHS - 1):
        worker_id = f"dead-{number}"
        given = boards.lease(ask(worker_id=worker_id)).episodes
        assert {one.job_id for one in given} == {"job-1", "job-2"}
        boards.forget_worker(worker_id, [one.episode_id for one in given if one.job_id == "job-1"][:1])
    executors = {one.job_id: one.executor for one in boards.lease(ask(worker_id="last")).episodes}
    assert executors == {"job-1": "process", "job-2": "thread"}
    assert [boards.take_crash("job-1"), boards.take_crash("job-1"), boards.take_crash("job-2")] == [
        True,
        False,
        False,
    ]
    boards.forget_worker("last", ["job-1:1:0"])
    assert boards.wait("job-2", 1, 0.0) == "waiting"
    with pytest.raises(TooManyFailedEpisodesError):
        boards.wait("job-1", 1, 0.0)


def test_counts_no_crash_for_a_worker_that_was_not_needed(boards):
    Job(boards, "job-1")
    for number in range(MOST_WORKER_DEATHS):
        given = boards.lease(ask(worker_id=f"env-{number}")).episodes
        lost = boards.forget_worker(f"env-{number}", [given[0].episode_id], end="not_needed")
        assert lost == len(given) == 4
    assert {one.executor for one in boards.lease(ask(worker_id="last")).episodes} == {"thread"}
    assert not boards.take_crash("job-1")
    assert boards.wait("job-1", 1, 0.0) == "waiting"


def test_blames_only_a_job_in_a_call_for_silent_worker(boards):
    Job(boards, "job-1")
    given = boards.lease(ask(worker_id="outside")).episodes
    assert boards.forget_worker("outside", end="silent") == len(given) == 4
    assert not boards.take_crash("job-1")
    given = boards.lease(ask(worker_id="inside")).episodes
    boards.forget_worker("inside", [given[0].episode_id], end="silent")
    assert boards.take_crash("job-1")


def test_starts_next_job_in_fresh_processes_after_an_environment_crash(boards):
    Job(boards, "job-1", owner="eve", environment="eve/Crash-v0")
    given = boards.lease(ask(worker_id="dead")).episodes
    boards.forget_worker("dead", [given[0].episode_id])
    boards.close("job-1")
    Job(boards, "again", owner="eve", environment="eve/Crash-v0")
    Job(boards, "other", owner="eve", environment="eve/Sound-v0")
    Job(boards, "anothers", owner="ada", environment="eve/Crash-v0")
    leased = [*boards.lease(ask(worker_id="1")).episodes, *boards.lease(ask(worker_id="2")).episodes]
    executors = {episode.job_id: episode.executor for episode in leased}
    assert executors == {"again": "process", "other": "thread", "anothers": "thread"}
    assert not boards.take_crash("again"), "nothing crashed in it"
