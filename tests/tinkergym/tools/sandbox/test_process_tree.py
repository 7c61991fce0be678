"""Whose memory is added up, told from what `/proc` shows."""

import os

import pytest

from tinkergym.tools.sandbox.process_tree import ProcessTree

FIRST = 20


@pytest.fixture
def proc(tmp_path):
    """A `/proc` of init, a launcher, the first process of its code and one of somebody else."""

    def start(pid, parent, kilobytes=100):
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) c) S {parent} 0")
        (tmp_path / str(pid) / "smaps_rollup").write_text(f"Pss: {kilobytes} kB\n")

    for pid, parent in ((1, 0), (10, 1), (11, 0), (FIRST, 10)):
        start(pid, parent)
    start.folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield start
    os.close(start.folder)


def test_adds_up_all_descendants_of_the_first_process(proc):
    tree = ProcessTree(proc.folder, FIRST)
    assert tree.used_bytes() == 0  # the kernel limits the first one
    proc(30, 40)
    proc(40, FIRST)
    proc(50, 11)
    assert tree.used_bytes() == 300 * 1024


def test_finds_new_process_at_the_next_look(proc):
    tree = ProcessTree(proc.folder, FIRST)
    proc(40, 30, kilobytes=1000)
    proc(41, 40)
    tree.used_bytes()
    proc(30, FIRST)
    assert tree.used_bytes() == 1300 * 1024


def test_counts_process_whose_parent_ended_with_the_first(proc):
    tree = ProcessTree(proc.folder, FIRST)
    proc(40, 30)
    tree.used_bytes()
    proc(40, FIRST)
    assert tree.used_bytes() == 200 * 1024
