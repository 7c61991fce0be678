from benchmarks.mixed_kills import VICTIMS
from benchmarks.soak import _figure
from benchmarks.soak_hosts import KINDS


def _run(where, kinds):
    return {"where": where, "kills": dict.fromkeys(kinds, 20), "jobs": 7, "wrong": [], "unequal": []}


def test_asks_for_kills_on_hosts_only_where_there_were_hosts():
    alone, hosts = _run("machine", VICTIMS), _run("hosts", KINDS)
    assert _figure([alone]).reached
    assert not _figure([_run("hosts", [])]).reached
    assert _figure([alone, hosts]).reached
    assert not _figure([alone, {**hosts, "kills": {}}]).reached
