"""`tinkergym plan` as a program: what it prints, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.app.planned import main
from backend.errors import ConfigError
from backend.planning.gpu_table import gpu_table
from backend.planning.machines import Machine

NODES = '{"nodes": [{"name": "big", "gpus": 8, "gpu_gb": 141}, {"name": "small", "gpus": 1, "gpu_gb": 24}]}'


@pytest.fixture
def nodes(tmp_path):
    (tmp_path / "nodes.json").write_text(NODES)
    return str(tmp_path / "nodes.json")


def test_prints_where_each_model_would_run(nodes, capsys):
    settings = ["--set", "models.nano.placement.gpus=4", "--set", "models.nano-instruct.placement.gpus=9"]
    assert main(["--nodes", nodes, *settings, "--json", "nano", "nano-instruct"]) == 0
    placed = {each["model"]: each for each in json.loads(capsys.readouterr().out)["models"]}
    assert sum(part["kind"] == "rank" for part in placed["nano"]["parts"]) == 4
    assert {part["node"] for part in placed["nano-instruct"]["parts"]} == {"big", "small"}


def test_prints_why_a_model_would_not_run(nodes, capsys):
    assert main(["--nodes", nodes, "--set", "placement.gpus=10", "nano"]) == 1
    assert "nano: cannot be placed, needs 10 GPUs" in capsys.readouterr().out
    assert main(["--nodes", nodes, "--set", "placement.labels.zone=b", "--json", "nano"]) == 1
    (refused,) = json.loads(capsys.readouterr().out)["models"]
    assert refused["forever"]
    assert "zone=b" in refused["reason"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["unheard-of"], "MODEL"),
        (["--set", "device=cpu"], "device"),
    ],
)
def test_refuses_slip_in_one_line_and_as_json(arguments, field, capsys):
    assert main([*arguments, "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["error"]["field"] == field
    assert len(printed.err.splitlines()) == 1


CLUSTER = ["--set", "ray.address=10.0.0.5:6379"]


def test_plans_for_nodes_that_cluster_names(capsys):
    asked = []

    def nodes_of(config):
        asked.append(config.ray.address)
        return [Machine(node_id="10.0.0.5", cpus=16, memory_bytes=64 * 10**9, gpus=(24 * 10**9,) * 2)]

    wish = ["--set", "models.nano.placement.gpus=2"]
    assert main([*CLUSTER, *wish, "--json", "nano"], nodes_of) == 0
    found = json.loads(capsys.readouterr().out)
    assert asked == ["10.0.0.5:6379"]
    assert [part["node"] for part in found["models"][0]["parts"]] == ["10.0.0.5"] * 6


def test_asks_for_file_where_cluster_does_not_answer(capsys):
    def nodes_of(config):
        raise ConfigError("nothing answers", field="ray.address")

    assert main([*CLUSTER, "--json"], nodes_of) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["field"] == "--nodes"
    assert "--nodes FILE" in error["hint"]


def test_plans_for_this_machine_and_prints_the_table(capsys):
    assert main(["nano"]) == 0
    assert "this machine" in capsys.readouterr().out
    assert main(["--table"]) == 0
    assert capsys.readouterr().out.strip() == gpu_table()


def test_keeps_table_of_the_documentation():
    page = Path(__file__).parents[3] / "docs" / "operating" / "gpus.md"
    assert gpu_table() in page.read_text()
