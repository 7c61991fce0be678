"""A service whose engine gives its memory to the learner trains what every other service trains."""

from __future__ import annotations


def finished(lab):
    job_id = lab.start(steps=3, deterministic=True)
    lab.play_on(job_id)
    return lab.weights(job_id, 3)


def test_the_engine_sleeps_in_each_update_and_the_job_ends_with_the_same_bits(make_lab, monkeypatch):
    plain, sleepy = make_lab("plain"), make_lab("sleepy", sleep_while_learning=True)
    engine, slept = sleepy.pool._engine, []
    fall_asleep = engine.sleep
    monkeypatch.setattr(engine, "sleep", lambda: slept.append(fall_asleep()) or slept[-1])
    monkeypatch.setattr(plain.pool._engine, "sleep", lambda: slept.append("nobody asked for it"))
    assert finished(sleepy) == finished(plain)
    assert slept == [True] * 3
