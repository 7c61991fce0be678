"""What a model card says, and under which name it has the base model."""

import pytest
import yaml

from tinkergym.remote.model_card import CardFacts, hub_base, is_hub_id, model_card
from tinkergym.schema.events import CheckpointView, EvaluationEvent
from tinkergym.schema.jobs.parts import LoRA
from tinkergym.schema.parsing import parse_spec

SHA = "ab" * 32
CACHED = f"/home/x/.cache/huggingface/hub/models--Qwen--Qwen2.5-0.5B/snapshots/{'0' * 40}"


@pytest.mark.parametrize(
    ("path", "model", "found"),
    [
        (CACHED, "small", ("Qwen/Qwen2.5-0.5B", "0" * 40)),
        ("/models/mine", "Qwen/Qwen3-1.7B", ("Qwen/Qwen3-1.7B", None)),
        ("/models/mine", "nano", ("nano", None)),
    ],
)
def test_names_base_by_its_hub_id_where_it_has_one(path, model, found):
    assert hub_base(path, model) == found


def test_takes_no_folder_for_an_id():
    assert [is_hub_id(name) for name in ("a/b", "/models/a", "nano", "a/b/c", "../b")] == [True] + 4 * [False]


def card(**changes):
    spec = {"kind": "sft", "model": "Qwen/Qwen3-1.7B", "data": SHA, "steps": 9, "name": "a | b\n# c"}
    facts = {
        "job_id": "job-1",
        "spec": parse_spec({**spec, "adapter": LoRA(rank=3)}),
        "checkpoint": CheckpointView(step=9, policy_version=9, sha256=SHA, files={}),
        "base": "Qwen/Qwen3-1.7B",
        "base_sha256": "cd" * 32,
        "is_adapter": True,
        "evaluations": [],
        "packs": {"tinkergym-board": "1.0"},
        "certificate": None,
    }
    return model_card(CardFacts(**{**facts, **changes}))


def test_has_metadata_that_the_hub_reads():
    _, head, text = card().split("---\n", 2)
    assert yaml.safe_load(head) == {
        "base_model": "Qwen/Qwen3-1.7B",
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["tinkergym", "sft"],
    }
    assert text.count("\n# ") == 1
    assert SHA in text
    assert "base_model" not in card(base="nano").split("---\n")[1]


def test_shows_evaluations_of_its_version_with_intervals():
    def played(version, mean, low, high):
        return EvaluationEvent(
            name="held out",
            step=version,
            policy_version=version,
            episodes=40,
            failed_episodes=2,
            mean=mean,
            low=low,
            high=high,
        )

    shown = card(evaluations=[played(0, 0.125, 0.0, 0.25), played(9, 0.5, 0.375, 0.625)])
    assert "| held out | 0.5 | 0.375 to 0.625 | 38 | 2 | unknown |" in shown
    assert "0.125" not in shown
