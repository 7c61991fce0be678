from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from huggingface_hub import errors

from backend.catalog import hub
from backend.catalog.models import (
    load_renderer_bundle,
    read_model_facts,
    resolve_model,
    without_folder,
)
from tinkergym.errors import TemplateError, UnknownModelError
from tinkergym.schema.chat_templates import PLAIN
from tinkergym.schema.views import TrainedWith

TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "</s>": 2}},
    "added_tokens": [{"id": 3, "content": "<|im_end|>"}, {"id": 2, "content": "</s>"}],
}


TEMPLATE = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"


@pytest.fixture
def directory(make_model, write_json, tmp_path):
    """A model directory of its own that a test may change."""
    for file in make_model("qwen3").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write_json(tmp_path / "tokenizer.json", TOKENIZER)
    write_json(
        tmp_path / "tokenizer_config.json",
        {"chat_template": TEMPLATE, "eos_token": {"content": "</s>", "lstrip": False}, "bos_token": "a"},
    )
    return tmp_path


def test_finds_model_by_offered_name_and_by_directory(directory):
    assert resolve_model("mine", {"mine": str(directory)}) == directory
    assert resolve_model(str(directory), {}) == directory


@pytest.mark.parametrize(
    "name",
    ["nanno", "../../etc", "no such thing", "", "x" * 5000, "~nobody-of-that-name/model", "a\0b"],
    ids=lambda name: repr(name[:20]),
)
def test_lists_what_there_is_for_unknown_name(name, directory):
    with pytest.raises(UnknownModelError) as caught:
        resolve_model(name, {"nano": str(directory), "llama": "x/y"})
    assert caught.value.field == "model"
    assert ("did you mean 'nano'" in caught.value.hint) is (name == "nanno")


def test_names_missing_folder_and_machine_in_full(directory, monkeypatch):
    monkeypatch.chdir(directory)
    with pytest.raises(UnknownModelError) as caught:
        resolve_model("./mymodel", {"nano": str(directory)})
    assert f"{str(directory / 'mymodel')!r} is not a folder on the service's machine" in str(caught.value)


@pytest.mark.parametrize("name", ["", " "])
def test_does_not_mean_current_folder_by_no_name(name, directory, monkeypatch):
    monkeypatch.chdir(directory)
    with pytest.raises(UnknownModelError):
        resolve_model(name, {})


def test_rejects_adapter_as_model_and_says_how_to_make_one(directory, monkeypatch):
    (directory / "config.json").rename(directory / "adapter_config.json")
    monkeypatch.chdir(directory.parent)
    with pytest.raises(UnknownModelError) as caught:
        resolve_model(directory.name, {})
    assert caught.value.field == "model"


def test_does_not_treat_offered_name_without_folder_as_a_typo(directory):
    with pytest.raises(UnknownModelError) as caught:
        resolve_model("nano", {"nano": str(directory / "gone")})
    assert "did you mean" not in caught.value.hint


def test_names_missing_offered_folders_but_not_hub_ids(directory):
    offered = {"mine": str(directory), "gone": str(directory / "gone"), "hub": "some/model", "odd": "nano"}
    faults = without_folder(offered)
    assert sorted(faults) == ["gone", "odd"]
    assert repr(str(directory / "gone")) in faults["gone"]


def test_takes_only_offered_models_where_the_operator_says_so(directory):
    with pytest.raises(UnknownModelError):
        resolve_model(str(directory), {}, allow_any=False)


def test_reports_hub_id_that_cannot_be_had_as_unknown_model(directory, monkeypatch):
    def offline(hub_id, **options):
        raise errors.LocalEntryNotFoundError("offline")

    monkeypatch.setattr(hub, "huggingface_hub", SimpleNamespace(snapshot_download=offline))
    with pytest.raises(UnknownModelError):
        resolve_model("some/model", {})
    hub.huggingface_hub.snapshot_download = lambda hub_id, **options: str(directory)
    assert resolve_model("some/model", {}) == directory


def test_downloads_too_large_model_only_if_the_operator_lists_it(directory, monkeypatch):
    def download(hub_id, *, local_files_only=False, **options):
        if local_files_only:
            raise errors.LocalEntryNotFoundError("not here yet")
        return str(directory)

    files = [
        SimpleNamespace(rfilename="a.safetensors", size=900),
        SimpleNamespace(rfilename="b.bin", size=9000),
    ]
    api = SimpleNamespace(model_info=lambda *_, **__: SimpleNamespace(siblings=files))
    found = SimpleNamespace(snapshot_download=download, HfApi=lambda: api)
    monkeypatch.setattr(hub, "huggingface_hub", found)
    with pytest.raises(UnknownModelError):
        resolve_model("some/model", {}, most_bytes=899)
    assert resolve_model("some/model", {}, most_bytes=900) == directory
    assert resolve_model("big", {"big": "some/model"}, most_bytes=1) == directory


def test_rejects_pickled_weights_as_a_model(directory):
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(UnknownModelError):
        resolve_model(str(directory), {})


def test_takes_facts_from_configuration_and_headers_of_weights(directory):
    facts = read_model_facts(directory)
    assert (facts.architecture, facts.context_length, facts.vocabulary_size) == ("Qwen3ForCausalLM", 256, 64)
    from transformers import AutoModelForCausalLM

    assert facts.parameters == AutoModelForCausalLM.from_pretrained(directory).num_parameters()


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"max_position_embeddings": "many"}'])
def test_names_broken_configuration(directory, content):
    (directory / "config.json").write_text(content)
    with pytest.raises(UnknownModelError):
        read_model_facts(directory)


def test_names_broken_weights_file(directory):
    (directory / "model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(UnknownModelError):
        read_model_facts(directory)


def test_bundles_tokenizer_template_special_tokens_and_every_stop_id(directory, write_json):
    write_json(directory / "generation_config.json", {"eos_token_id": [9, 2]})
    bundle = load_renderer_bundle("mine", directory)
    assert bundle.model == "mine"
    assert bundle.tokenizer_json == (directory / "tokenizer.json").read_text()
    assert bundle.chat_template == TEMPLATE
    assert bundle.special_tokens == {"eos_token": "</s>", "bos_token": "a"}
    # The eos tokens, and the token with which the template ends a turn.
    assert bundle.stop_ids == [2, 3, 9]
    assert bundle.context_length == 256


def test_excludes_from_stop_tokens_one_that_ends_messages_within_turns(directory, write_json):
    added = [{"id": 3, "content": "<|end|>"}, {"id": 4, "content": "<|return|>"}]
    write_json(directory / "tokenizer.json", {**TOKENIZER, "added_tokens": added})
    # As harmony does: the last answer ends as the model ends its turn, earlier ones as any message.
    (directory / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{{ '<|return|>' if loop.last and m.role == 'assistant' else '<|end|>' }}{% endfor %}"
    )
    assert load_renderer_bundle("mine", directory).stop_ids == [2, 4]


def test_prefers_template_file_and_changes_the_hash(directory):
    before = load_renderer_bundle("mine", directory)
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    after = load_renderer_bundle("mine", directory)
    assert after.chat_template == "{{ messages }}"
    assert after.sha256 != before.sha256


def test_rejects_model_without_template_or_tokenizer_with_a_hint(directory):
    (directory / "tokenizer_config.json").unlink()
    with pytest.raises(TemplateError):
        load_renderer_bundle("mine", directory)
    (directory / "tokenizer.json").unlink()
    with pytest.raises(UnknownModelError):
        load_renderer_bundle("mine", directory)


def test_describes_models_without_torch():
    code = "import sys, backend.catalog.models; print('torch' in sys.modules, 'transformers' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]


def test_says_in_export_folder_how_training_asked_the_policy(directory, write_json):
    before = load_renderer_bundle("mine", directory)
    assert before.trained_with is None
    written = {"job_id": "job-1", "policy_version": 3, "system_prompt": "Count.", "reasoning": "drop"}
    write_json(directory / "tinkergym.json", written)
    bundle = load_renderer_bundle("mine", directory)
    assert bundle.trained_with == TrainedWith(system_prompt="Count.", reasoning="drop")
    assert bundle.sha256 == before.sha256
    write_json(directory / "tinkergym.json", {"job_id": "job-2"})  # of a job without episodes
    assert load_renderer_bundle("mine", directory).trained_with == TrainedWith()
    write_json(directory / "tinkergym.json", {"reasoning": "perhaps"})
    with pytest.raises(UnknownModelError) as caught:
        load_renderer_bundle("mine", directory)
    assert caught.value.field == "model"


def test_renders_model_without_template_by_the_jobs_template(directory, write_json):
    write_json(directory / "tokenizer_config.json", {"eos_token": "</s>"})
    with pytest.raises(TemplateError):
        load_renderer_bundle("base", directory)
    bundle = load_renderer_bundle("base", directory, PLAIN)
    assert (bundle.chat_template, 2 in bundle.stop_ids) == (PLAIN, True)
    with pytest.raises(TemplateError) as caught:
        load_renderer_bundle("base", directory, "{{ unclosed")
    assert caught.value.field == "chat_template"
