"""A service whose engine gives its memory to the learner trains what every other service trains."""

from __future__ import annotations

import pytest

CONVERSATIONS = [{"prompt": f"say {number}", "completion": f"{number}"} for number in range(6)]
PAIRS = [{"prompt": f"say {number}", "chosen": f"{number}", "rejected": "no"} for number in range(6)]


def finished(lab):
    job_id = lab.start(steps=3, deterministic=True)
    assert lab.pool.routes.prove().sampled  # Awake while the job plays.
    lab.play_on(job_id)
    return lab.weights(job_id, 3)


@pytest.fixture
def labs(make_lab, monkeypatch):
    """A plain lab, a sleepy one, and what the sleepy one's engine answered whenever it was to sleep."""
    plain, sleepy = make_lab("plain"), make_lab("sleepy", sleep_while_learning=True)
    engine, slept = sleepy.pool.own.engine, []
    fall_asleep = engine.sleep
    monkeypatch.setattr(engine, "sleep", lambda: slept.append(fall_asleep()) or slept[-1])
    monkeypatch.setattr(plain.pool.own.engine, "sleep", lambda: slept.append("nobody asked for it"))
    return plain, sleepy, slept


def test_sleeps_engine_in_each_update_and_ends_with_same_bits(labs):
    plain, sleepy, slept = labs
    assert finished(sleepy) == finished(plain)
    assert slept == [True] * 3


@pytest.mark.parametrize(("kind", "rows"), [("sft", CONVERSATIONS), ("preference", PAIRS)])
def test_sleeps_engine_during_written_data_until_a_version_is_published(make_jobs, written_in, kind, rows):
    plain, sleepy = make_jobs("plain"), make_jobs("sleepy", sleep_while_learning=True)
    settings = {"steps": 5, "checkpoint_every": 2}
    expected = plain.weights(written_in(plain).run(kind, rows, **settings), 5)
    job_id = written_in(sleepy).run(kind, rows, **settings)
    assert sleepy.weights(job_id, 5) == expected
    policy = sleepy.worker.policies[job_id][""]
    asleep, slept = False, []
    for call in policy.calls:
        if call == "batch":
            assert asleep
        if call == "sleep":
            slept.append(call)
        if call == "sleep" or call.startswith(("publish", "probe")):
            asleep = call == "sleep"
    # At the beginning, and after the second and the fourth step; the last version is for whoever samples it.
    assert (policy.calls.count("batch"), len(slept), asleep) == (5, 3, False)
