from backend.workers.env_worker_files import EnvWorkerFiles


def test_shows_part_of_a_stall_and_removes_files_twice(tmp_path):
    files = EnvWorkerFiles(tmp_path, "env-1")
    assert files.stall() == ""
    files.create()
    files.create()
    files.trace.write_bytes(b"stack \xff" * 1000)
    files.calls.write_bytes(b"")
    assert files.stall().startswith("stack")
    assert len(files.stall()) < 6000
    for _ in range(2):
        files.remove()
    assert list(files.trace.parent.iterdir()) == []
