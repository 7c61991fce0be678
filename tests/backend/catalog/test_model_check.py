"""Models that no worker could use are refused when a job names them, with the reason, and no job is made."""

import json
import shutil
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from backend.admission.offered_models import FileCatalog
from backend.admission.preflight import Preflight
from backend.catalog.models import resolve_model
from backend.catalog.tensor_files import first_not_finite
from backend.config import ServiceConfig
from backend.settings.gateway_limits import GatewayLimits
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.errors import InvalidRequestError, TemplateError, UnknownModelError
from tinkergym.schema.parsing import parse_spec


class Model:
    """A copy of nano that a test breaks."""

    def __init__(self, folder):
        self.folder = folder
        shutil.copytree(PACKAGED_MODELS["nano"], folder)
        self.weights = folder / "model.safetensors"

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def remove(self, name):
        (self.folder / name).unlink()

    def configure(self, name="config.json", **settings):
        content = json.loads((self.folder / name).read_text())
        self.write(name, json.dumps(content | settings))

    def change_weights(self, change):
        tensors = load_file(self.weights)
        change(tensors)
        save_file(tensors, self.weights, {"format": "pt"})

    def divide(self):
        """Write the weights as two files and an index."""
        tensors = load_file(self.weights)
        self.weights.unlink()
        files = {
            name: f"model-0000{1 + place % 2}-of-00002.safetensors"
            for place, name in enumerate(sorted(tensors))
        }
        for file in set(files.values()):
            save_file(
                {n: t for n, t in tensors.items() if files[n] == file}, self.folder / file, {"format": "pt"}
            )
        self.write("model.safetensors.index.json", json.dumps({"weight_map": files}))
        return sorted(set(files.values()))


@pytest.fixture
def model(tmp_path):
    return Model(tmp_path / "model")


@pytest.fixture
def submit(model, tmp_path):
    """Check a job as the gateway does before it is stored."""
    config = ServiceConfig(data_dir=tmp_path / "data")
    catalog = FileCatalog(config)
    check = Preflight(catalog, GatewayLimits())

    def run(**settings):
        spec = {
            "environment": {"id": "own/Env-v0"},
            "steps": 1,
            "rollout": "client",
            "model": str(model.folder),
        }
        return check.check(parse_spec({**spec, **settings}))

    return run


def put(value, name="model.layers.1.mlp.up_proj.weight", dtype=None):
    """Return what puts a number into one place of one tensor."""

    def change(tensors):
        changed = tensors[name].astype(dtype or tensors[name].dtype)
        changed[-1, -1] = value
        tensors[name] = changed

    return change


def without_last_layer(tensors):
    for name in [name for name in tensors if name.startswith("model.layers.2.")]:
        del tensors[name]


def fewer_rows(tensors):
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"][:100].copy()


def lose_a_file(model):
    model.remove(model.divide()[1])


def lose_a_tensor(model):
    first, second = model.divide()
    shutil.copy(model.folder / first, model.folder / second)


def cut_weights(model):
    model.weights.write_bytes(model.weights.read_bytes()[:-1000])


def more_tokens_than_rows(model):
    model.configure(vocab_size=100)
    model.change_weights(fewer_rows)


def header(content):
    text = json.dumps(content).encode() if not isinstance(content, bytes) else content
    return struct.pack("<Q", len(text)) + text


BROKEN = {
    "an encoder": (lambda m: m.configure(architectures=["BertModel"], model_type="bert"), "BertModel"),
    "a classifier": (
        lambda m: m.configure(architectures=["Qwen3ForSequenceClassification"]),
        "Classification",
    ),
    "a model without head": (lambda m: m.configure(architectures=["Qwen3Model"]), "Qwen3Model"),
    "an encoder with a decoder": (
        lambda m: m.configure(architectures=["T5ForConditionalGeneration"], is_encoder_decoder=True),
        "is an encoder-decoder",
    ),
    "a head that sees the future": (
        lambda m: m.configure(architectures=["BertLMHeadModel"], model_type="bert"),
        "is bidirectional",
    ),
    "NaN": (
        lambda m: m.change_weights(put(np.nan)),
        "NaN or infinity, in 'model.layers.1.mlp.up_proj.weight'",
    ),
    "infinity": (lambda m: m.change_weights(put(-np.inf, dtype=np.float16)), "NaN or infinity"),
    "a tokenizer with more tokens": (more_tokens_than_rows, "100 tokens"),
    "weights of another vocabulary": (lambda m: m.change_weights(fewer_rows), "vocab_size is 1024"),
    "weights of fewer layers": (lambda m: m.change_weights(without_last_layer), "they have 2 layers"),
    "no config": (lambda m: m.remove("config.json"), "has no config.json"),
    "a config that is not valid JSON": (lambda m: m.write("config.json", "{"), "is not JSON"),
    "a config that is a list": (lambda m: m.write("config.json", "[]"), "JSON object"),
    "a config of odd types": (lambda m: m.configure(vocab_size=["many"]), "vocab_size"),
    "architectures that are none": (lambda m: m.configure(architectures={"0": "x"}), "architectures"),
    "a huge config": (lambda m: m.write("config.json", f'{{"x": "{"y" * (20 << 20)}"}}'), "bytes"),
    "a deep config": (lambda m: m.write("config.json", "[" * 200_000), "is not JSON"),
    "no weights": (lambda m: m.remove("model.safetensors"), "no *.safetensors weights"),
    "weights by another name": (
        lambda m: m.weights.rename(m.folder / "consolidated.safetensors"),
        "neither model.safetensors",
    ),
    "weights that are cut off": (cut_weights, "last 1000 bytes are missing"),
    "weights that are something else": (
        lambda m: m.weights.write_bytes(b"version https://git-lfs"),
        "not a safet",
    ),
    "a header that is not valid JSON": (
        lambda m: m.weights.write_bytes(header(b"{{{{")),
        "not a safetensors file",
    ),
    "a tensor without a place": (
        lambda m: m.weights.write_bytes(
            header({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 3]}})
        ),
        "not a safetensors file",
    ),
    "an index that names an absent file": (
        lose_a_file,
        "model-00002-of-00002.safetensors', which is not there",
    ),
    "an index that names an absent tensor": (lose_a_tensor, "but it does not"),
    "no tokenizer": (lambda m: m.remove("tokenizer.json"), "has no tokenizer.json"),
    "a tokenizer that is none": (lambda m: m.write("tokenizer.json", '{"model": []}'), "tokenizer.json"),
    "a chat template that is broken": (
        lambda m: m.write("chat_template.jinja", "{% for m in messages %}"),
        "template",
    ),
    "a chat template that is no text": (
        lambda m: (m.folder / "chat_template.jinja").write_bytes(b"\xff"),
        "chat_template.jinja",
    ),
    "no chat template": (lambda m: m.remove("chat_template.jinja"), "no chat template"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_rejects_unusable_model_with_the_reason_and_what_to_do(model, submit, what):
    change, said = BROKEN[what]
    change(model)
    with pytest.raises((UnknownModelError, InvalidRequestError, TemplateError)) as caught:
        submit()
    assert caught.value.field == "model"
    assert said in caught.value.message and caught.value.hint


def test_takes_sound_model_however_its_weights_are_written(model, submit):
    submit()
    model.divide()
    submit()


def test_checks_half_precision_weights_in_their_own_format(model, submit):
    import torch
    from safetensors.torch import load_file as load
    from safetensors.torch import save_file as save

    tensors = {name: tensor.bfloat16() for name, tensor in load(model.weights).items()}
    save(tensors, model.weights, {"format": "pt"})
    submit()
    tensors["lm_head.weight"][3, 5] = torch.inf
    save(tensors, model.weights, {"format": "pt"})
    with pytest.raises(InvalidRequestError) as caught:
        submit()
    assert caught.value.field == "model"


def test_takes_repaired_model_and_rejects_one_that_broke(model, submit):
    whole = model.weights.read_bytes()
    submit()
    model.change_weights(put(np.nan))
    with pytest.raises(InvalidRequestError) as caught:
        submit()
    assert caught.value.field == "model"
    model.weights.write_bytes(whole)
    submit()


def test_reads_weights_once_though_several_jobs_name_them_together(model, tmp_path, monkeypatch):
    catalog, together, read = FileCatalog(ServiceConfig(data_dir=tmp_path / "data")), threading.Barrier(3), []

    def resolve(*args, **settings):
        together.wait(120)
        return resolve_model(*args, **settings)

    def look(*args, **settings):
        read.append(args)
        return first_not_finite(*args, **settings)

    monkeypatch.setattr("backend.admission.offered_models.resolve_model", resolve)
    monkeypatch.setattr("backend.catalog.model_check.first_not_finite", look)
    with ThreadPoolExecutor(3) as threads:
        assert len({bundle.sha256 for bundle in threads.map(catalog.renderer, [str(model.folder)] * 3)}) == 1
    assert len(read) == 1


def test_reads_weights_once_however_many_jobs_name_them(model, submit, monkeypatch):
    submit()
    model.weights.chmod(0)
    monkeypatch.setattr("backend.catalog.model_check.first_not_finite", lambda *_, **__: pytest.fail("again"))
    submit()


def test_rejects_encoder_without_weights_for_its_architecture(model, submit):
    model.configure(architectures=["BertModel"], model_type="bert")
    model.remove("model.safetensors")
    with pytest.raises(InvalidRequestError) as caught:
        submit()
    assert caught.value.field == "model"


def test_rejects_model_without_weights_for_them(model, submit):
    model.remove("model.safetensors")
    with pytest.raises(UnknownModelError) as caught:
        submit()
    assert caught.value.field == "model"
