from __future__ import annotations

import json

import pytest

from backend.errors import ConfigError
from backend.planning.nodes_file import read_nodes

SLIPS = [
    ("nodes.yaml", "nodes: [{name: a, gpu: 8}]", "nodes.0.gpu"),
    ("nodes.yaml", "nodes: [{name: a, gpus: many}]", "nodes.0.gpus"),
    ("nodes.yaml", "nodes: []", "nodes"),
    ("nodes.yaml", "nodes: [{name: a}, {name: a}]", "nodes"),
    ("nodes.yaml", "nodes: [", "--nodes"),
    ("nodes.toml", "nodes = ", "--nodes"),
    ("nodes.json", "3", "--nodes"),
]


@pytest.mark.parametrize(("name", "content", "field"), SLIPS)
def test_refuses_slip_in_nodes_file_in_one_sentence(tmp_path, name, content, field):
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, check=lambda error: error.field == field):
        read_nodes(tmp_path / name)
    with pytest.raises(ConfigError):
        read_nodes(tmp_path / "missing")


def test_reads_same_nodes_from_each_format(tmp_path):
    node = {"name": "a", "count": 2, "gpus": 8, "gpu_gb": 141, "labels": {"gpu": "h200"}}
    (tmp_path / "n.json").write_text(json.dumps([node]))
    (tmp_path / "n.yaml").write_text(json.dumps({"nodes": [node]}))
    (tmp_path / "n.toml").write_text(
        '[[nodes]]\nname = "a"\ncount = 2\ngpus = 8\ngpu_gb = 141\nlabels = {gpu = "h200"}\n'
    )
    first, *others = (read_nodes(tmp_path / f"n.{kind}") for kind in ("json", "yaml", "toml"))
    assert [node.node_id for node in first] == ["a-1", "a-2"]
    assert first[0].gpus == (141 * 10**9,) * 8
    assert others == [first, first]
