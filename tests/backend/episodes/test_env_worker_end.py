from backend.episodes.env_worker_end import EnvWorkerFiles, WorkerRemains
from tinkergym.rollout.call_register import CallRegister


def test_collects_calls_and_part_of_a_stall_once(tmp_path):
    files = EnvWorkerFiles(tmp_path, "env-1")
    assert files.collect() == WorkerRemains()
    files.create()
    files.create()
    files.trace.write_bytes(b"stack \xff" * 1000)
    with CallRegister(files.calls).during("job-1:1:0"):
        remains = files.collect()
    assert remains.in_calls == ("job-1:1:0",)
    assert remains.stall.startswith("stack")
    assert len(remains.stall) < 6000
    assert files.collect() == WorkerRemains()
    assert list(files.trace.parent.iterdir()) == []
