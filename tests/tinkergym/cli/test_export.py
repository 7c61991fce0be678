"""Export over real HTTP, from checkpoints of the learner into what plain transformers and PEFT read."""

import dataclasses
import json
import os

import numpy as np
import pytest
import torch
from peft import PeftModel
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import tinkergym as tg
from backend.config import PACKAGED_MODELS
from backend.learner.learner import Learner
from backend.learner.losses import LossConfig
from backend.learner.sequences import TrainSequence
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import ConflictError, InvalidRequestError
from tinkergym.schema.events import CheckpointView
from tinkergym.schema.job_spec import FullParameters, LoRA
from tinkergym.testing.scripted_service import ScriptedService

NANO = PACKAGED_MODELS["nano"]
LORA = LoRA(rank=4, alpha=12.0)
SEQUENCE = TrainSequence(
    token_ids=[65, 66, 67, 68, 69, 70, 71],
    loss_mask=[False, False, False, True, True, True, True],
    sampling_logprobs=[None, None, None, -1.0, -1.0, -1.0, -1.0],
    advantage=1.0,
)


@dataclasses.dataclass(frozen=True)
class Learned:
    """A policy that was trained for a moment, and its checkpoint's files."""

    learner: Learner
    sha256: str
    files: dict[str, bytes]

    def logprobs(self):
        return self.learner.logprobs("p", [SEQUENCE])[0]


def learn(adapter, dtype, folder):
    learner = Learner(NANO, dtype=dtype)
    learner.create_policy("p", adapter, seed=1, value_head=True)  # which is no part of an export
    for _ in range(25):  # until the answer is likely: float32 knows logprobs near 0 to 1e-7
        known = [None] * 3 + learner.logprobs("p", [SEQUENCE])[0].tolist()
        sequence = dataclasses.replace(SEQUENCE, sampling_logprobs=known)
        learner.forward_backward("p", [sequence], LossConfig())
        learner.optim_step("p", learning_rate=1e-2)
    manifest = learner.save("p", folder, step=2, policy_version=2)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files.keys() >= {"optimizer.safetensors", "value_head.safetensors"}
    learned = Learned(learner, manifest.files[manifest.weights_file].sha256, files)
    assert learned.logprobs().min() > -3.0
    return learned


class Trained:
    """A scripted service whose one job has a real checkpoint, and what made it."""

    def __init__(self, service, learned):
        self.service, self.logprobs = service, learned.logprobs
        service.files = dict(learned.files)
        self.client = tg.Client(service.url, service.api_key)
        self.job = self.client.train("board/TicTacToeVs-v0", steps=2, rollout="server")
        service.jobs.get(self.job.id).checkpoints.append(
            CheckpointView(
                step=2,
                policy_version=2,
                path="/elsewhere",
                sha256=learned.sha256,
                files={name: len(content) for name, content in service.files.items()},
            )
        )


@pytest.fixture
def service():
    with ScriptedService(environments=["board/TicTacToeVs-v0"]) as service:
        yield service


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Train each kind of policy once: `learned(adapter, dtype)`."""
    kept = {}

    def once(adapter=LORA, dtype=torch.float32):
        if (adapter, dtype) not in kept:
            kept[adapter, dtype] = learn(adapter, dtype, tmp_path_factory.mktemp("learned") / "checkpoint")
        return kept[adapter, dtype]

    return once


@pytest.fixture
def trained(service, learned):
    return Trained(service, learned())


def logprobs(model):
    ids = torch.tensor([SEQUENCE.token_ids])
    with torch.no_grad():
        table = torch.log_softmax(model.eval()(ids).logits[0].float(), -1)
    return np.asarray([float(table[i - 1, ids[0, i]]) for i, m in enumerate(SEQUENCE.loss_mask) if m])


def assert_equal(found, expected):
    # Logits of size 16 have steps of 1e-6 in float32; two orders of summation differ by a few of them.
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)
    assert float(np.abs(found - expected).mean()) < 5e-6


def test_an_adapter_loads_in_peft_and_gives_the_same_logprobs(trained, tmp_path):
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


def test_a_merged_adapter_loads_in_transformers_and_gives_the_same_logprobs(trained, tmp_path):
    exported = trained.job.export(tmp_path / "out", version=2, merge=True)
    assert not exported.is_adapter
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert_equal(logprobs(model), trained.logprobs())
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    assert (tmp_path / "out").stat().st_mode & 0o055 == 0o055 & ~_umask()
    # And it is a model to begin with.
    assert_equal(Learner(tmp_path / "out").logprobs(None, [SEQUENCE])[0], trained.logprobs())


def test_an_adapter_trained_in_bfloat16_is_merged_into_the_base_as_it_was_then(service, learned, tmp_path):
    trained = Trained(service, learned(dtype=torch.bfloat16))
    trained.job.export(tmp_path / "out", merge=True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    # Weights that no adapter touches are the rounded ones, and the rest answers as the policy did.
    embedding = AutoModelForCausalLM.from_pretrained(NANO).get_input_embeddings().weight
    assert torch.equal(model.get_input_embeddings().weight, embedding.bfloat16().float())
    np.testing.assert_allclose(logprobs(model), trained.logprobs(), atol=5e-2)


def test_a_fully_trained_model_loads_in_transformers_and_gives_the_same_logprobs(service, learned, tmp_path):
    trained = Trained(service, learned(FullParameters()))
    assert not trained.job.export(tmp_path / "out").is_adapter
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert_equal(logprobs(model), trained.logprobs())


def test_a_base_for_what_is_not_merged_is_refused(service, learned, tmp_path):
    trained = Trained(service, learned(FullParameters()))
    for merge, said in ((True, "trained all parameters"), (False, "without merge")):
        with pytest.raises(InvalidRequestError, match=said) as caught:
            trained.job.export(tmp_path / "out", merge=merge, base="/nope")
        assert caught.value.field == "base"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_base_that_is_another_model_is_refused_and_leaves_nothing(service, learned, dtype, tmp_path):
    trained = Trained(service, learned(dtype=dtype))
    other = AutoModelForCausalLM.from_pretrained(NANO)
    next(other.parameters()).data.add_(0.1)
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(ConflictError, match="fingerprints differ"):
        trained.job.export(tmp_path / "out", merge=True, base=str(tmp_path / "other"))
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@pytest.mark.parametrize("damage", ["flip", "drop"])
def test_a_damaged_download_is_refused_and_leaves_nothing(trained, tmp_path, damage):
    name = "adapter_model.safetensors"
    if damage == "flip":
        trained.service.files[name] = trained.service.files[name][:-1] + b"\xff"
    else:
        trained.service.break_next(f"files/{name}")
    with pytest.raises(tg.TinkerGymError, match="damaged" if damage == "flip" else "service"):
        trained.job.export(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_that_names_a_file_elsewhere_is_refused(trained, tmp_path):
    manifest = json.loads(trained.service.files["manifest.json"])
    manifest["files"]["../evil"] = {"bytes": 1, "sha256": ""}
    trained.service.files["manifest.json"] = json.dumps(manifest).encode()
    with pytest.raises(tg.TinkerGymError, match="outside"):
        trained.job.export(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_exists_is_not_touched(trained, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(ConflictError, match="exists already"):
        trained.job.export(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_killed_exports_remains_are_removed_and_a_running_ones_are_not(trained, tmp_path):
    (tmp_path / ".out.unfinished-999999999").mkdir()
    (tmp_path / f".out.unfinished-{os.getppid()}").mkdir()
    trained.job.export(tmp_path / "out")
    assert sorted(p.name for p in tmp_path.glob(".out*")) == [f".out.unfinished-{os.getppid()}"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["{job}@7", "{out}"], "versions with one: 2"),
        (["{job}@last", "{out}"], "job-ID@40"),
        (["{job}", "{out}", "--base", "x"], "add --merge"),
        (["job-99", "{out}"], "no job is called"),
    ],
)
def test_the_command_says_what_is_wrong_in_a_sentence(
    trained, tmp_path, tg_run, monkeypatch, arguments, text
):
    monkeypatch.setenv("TINKERGYM_URL", trained.service.url)
    monkeypatch.setenv("TINKERGYM_API_KEY", trained.service.api_key)
    ran = tg_run("export", *(a.format(job=trained.job.id, out=tmp_path / "out") for a in arguments))
    assert ran.exit_code == 2
    assert text in ran.stderr
    assert "Traceback" not in ran.output


def test_the_command_writes_the_folder_and_says_what_is_in_it(trained, tmp_path, tg_run, monkeypatch):
    monkeypatch.setenv("TINKERGYM_URL", trained.service.url)
    monkeypatch.setenv("TINKERGYM_API_KEY", trained.service.api_key)
    ran = tg_run("export", f"{trained.job.id}@2", tmp_path / "out")
    assert ran.exit_code == 0
    assert "version 2, adapter" in ran.output
    assert (tmp_path / "out" / "adapter_config.json").exists()


def test_merging_without_torch_asks_for_the_extra(trained, tmp_path, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "peft" else find(name, *rest)
    )
    with pytest.raises(tg.TinkerGymError, match=r"peft.*\[backend\]"):
        trained.job.export(tmp_path / "out", merge=True)
    assert not (tmp_path / "out").exists()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
