"""Export over real HTTP, from checkpoints of the learner into what plain transformers and PEFT read."""

import contextlib
import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from peft import PeftModel
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import tinkergym as tg
from backend.learner import merging
from backend.learner.learner import Learner
from backend.testing.scripted_service import ScriptedService
from tests.tinkergym.exports import NANO, SEQUENCE, Trained
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import CheckpointCorruptError, ConflictError, InvalidRequestError
from tinkergym.schema.jobs.parts import FullParameters


@pytest.fixture
def service():
    with ScriptedService(environments=["board/TicTacToeVs-v0"]) as service:
        yield service


@pytest.fixture
def trained(service, learned, connect):
    return Trained(service, learned(), connect)


@pytest.fixture
def merges_here(monkeypatch):
    """Merge in this process, which has imported torch already: another one starts for seconds."""

    def run(command, **_):
        said = io.StringIO()
        with monkeypatch.context() as patch, contextlib.redirect_stdout(said):
            patch.setattr(sys, "argv", command[2:])
            code = merging.main()
        return subprocess.CompletedProcess(command, code, said.getvalue(), "")

    monkeypatch.setattr(subprocess, "run", run)


def logprobs(model):
    ids = torch.tensor([SEQUENCE.token_ids])
    with torch.no_grad():
        table = torch.log_softmax(model.eval()(ids).logits[0].float(), -1)
    return np.asarray([float(table[i - 1, ids[0, i]]) for i, m in enumerate(SEQUENCE.loss_mask) if m])


def assert_equal(found, expected):
    # Logits of size 16 have steps of 1e-6 in float32; two orders of summation differ by a few of them.
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)
    assert float(np.abs(found - expected).mean()) < 5e-6


def test_loads_adapter_in_peft_with_the_same_logprobs(trained, tmp_path):
    exported = trained.job.export(tmp_path / "out")
    assert (exported.policy_version, exported.is_adapter, exported.without_tokenizer) == (2, True, "")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(NANO), tmp_path / "out")
    assert_equal(logprobs(model), trained.logprobs())
    tokenizer, bundle = AutoTokenizer.from_pretrained(tmp_path / "out"), trained.service.bundle
    chat = [{"role": "user", "content": "ab"}]
    renderer = Renderer.from_bundle(bundle)
    assert tokenizer("ab")["input_ids"] == Tokenizer.from_str(bundle.tokenizer_json).encode("ab").ids
    shown = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
    assert list(shown["input_ids"]) == renderer.start(chat)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert not names & {"optimizer.safetensors", "value_head.safetensors"}


@pytest.mark.full("loads it in a new process; others of this file load what is exported here")
def test_loads_merged_adapter_in_transformers_with_the_same_logprobs(trained, tmp_path):
    exported = trained.job.export(tmp_path / "out", version=2, merge=True)
    assert not exported.is_adapter
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert_equal(logprobs(model), trained.logprobs())
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    assert (tmp_path / "out").stat().st_mode & 0o055 == 0o055 & ~_umask()
    # And it is a model to begin with.
    assert_equal(Learner(tmp_path / "out").logprobs(None, [SEQUENCE])[0], trained.logprobs())


@pytest.mark.usefixtures("merges_here")
def test_merges_adapter_trained_in_bfloat16_into_base_as_then(service, learned, tmp_path, connect):
    trained = Trained(service, learned(dtype=torch.bfloat16), connect)
    trained.job.export(tmp_path / "out", merge=True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    # Weights that no adapter touches are the rounded ones, and the rest answers as the policy did.
    embedding = AutoModelForCausalLM.from_pretrained(NANO).get_input_embeddings().weight
    assert torch.equal(model.get_input_embeddings().weight, embedding.bfloat16().float())
    np.testing.assert_allclose(logprobs(model), trained.logprobs(), atol=5e-2)


def test_loads_fully_trained_model_in_transformers_with_same_logprobs(service, learned, tmp_path, connect):
    trained = Trained(service, learned(FullParameters()), connect)
    assert not trained.job.export(tmp_path / "out").is_adapter
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert_equal(logprobs(model), trained.logprobs())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["{job}@7", "{out}"], "versions with a checkpoint: 2"),
        (["{job}@last", "{out}"], "job-ID@40"),
        (["{job}", "{out}", "--base", "x"], "add --merge"),
        (["job-99", "{out}"], "there is no job"),
    ],
)
def test_says_in_a_sentence_what_is_wrong(trained, tmp_path, tg_run, monkeypatch, arguments, text):
    monkeypatch.setenv("TINKERGYM_URL", trained.service.url)
    monkeypatch.setenv("TINKERGYM_API_KEY", trained.service.api_key)
    ran = tg_run("export", *(a.format(job=trained.job.id, out=tmp_path / "out") for a in arguments))
    assert ran.exit_code == 2
    assert text in ran.stderr
    assert "Traceback" not in ran.output


def test_writes_the_folder_and_says_what_is_in_it(trained, tmp_path, tg_run, monkeypatch):
    monkeypatch.setenv("TINKERGYM_URL", trained.service.url)
    monkeypatch.setenv("TINKERGYM_API_KEY", trained.service.api_key)
    ran = tg_run("export", f"{trained.job.id}@2", tmp_path / "out")
    assert ran.exit_code == 0
    assert "version 2, adapter" in ran.output
    assert (tmp_path / "out" / "adapter_config.json").exists()


def test_asks_for_the_extra_when_merging_without_torch(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(tg.TinkerGymError, match=r"peft.*\[backend\]"):
        trained.job.export(tmp_path / "out", merge=True)
    assert not (tmp_path / "out").exists()


def test_rejects_base_for_what_is_not_merged(service, learned, tmp_path, connect):
    trained = Trained(service, learned(FullParameters()), connect)
    for merge in (True, False):
        with pytest.raises(InvalidRequestError) as caught:
            trained.job.export(tmp_path / "out", merge=merge, base="/nope")
        assert caught.value.field == "base"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("merges_here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rejects_base_of_another_model_and_leaves_nothing(service, learned, dtype, tmp_path, connect):
    trained = Trained(service, learned(dtype=dtype), connect)
    other = AutoModelForCausalLM.from_pretrained(NANO)
    next(other.parameters()).data.add_(0.1)
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(ConflictError, check=lambda error: error.field == "base"):
        trained.job.export(tmp_path / "out", merge=True, base=str(tmp_path / "other"))
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@pytest.mark.parametrize("damage", ["flip", "drop"])
def test_rejects_damaged_download_and_leaves_nothing(trained, tmp_path, damage):
    name = "adapter_model.safetensors"
    if damage == "flip":
        weights = trained.folder / name
        weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    else:
        trained.service.break_next(f"files/{name}")
    with pytest.raises(CheckpointCorruptError if damage == "flip" else tg.TinkerGymError):
        trained.job.export(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_rejects_manifest_that_names_a_file_elsewhere(trained, tmp_path):
    kept = trained.folder / "manifest.json"
    manifest = json.loads(kept.read_bytes())
    manifest["files"]["../evil"] = {"bytes": 1, "sha256": ""}
    kept.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointCorruptError, check=lambda error: error.code == "file_outside"):
        trained.job.export(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
