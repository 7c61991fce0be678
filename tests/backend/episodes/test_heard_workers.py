from backend.episodes.heard_workers import HeardWorkers


def heard(*noted):
    workers = HeardWorkers(30.0)
    for worker, now in noted:
        workers.note(worker, now)
    return workers


def test_names_workers_that_play_together():
    workers = heard(("a", 0.0))
    assert workers.concurrent == []
    workers.note("b", 1.0)
    assert workers.concurrent == []  # `a` may be dead, and `b` in its place
    workers.note("a", 2.0)
    assert workers.concurrent == ["b", "a"]
    workers.forget("a")
    assert workers.concurrent == []
    workers.note("c", 40.0)
    assert workers.concurrent == []


def test_compares_each_worker_with_all_others():
    workers = heard(
        ("long", 0.0), ("short", 1.0), ("short", 2.0), ("late", 5.0), ("long", 6.0), ("alone", 7.0)
    )
    assert set(workers.concurrent) == {"long", "short", "late"}
