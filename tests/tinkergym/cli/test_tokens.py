import json
from pathlib import Path

import pytest

import backend
from benchmarks.template_families import shipped_template, template_bundle
from tinkergym.agent.renderer import Renderer
from tinkergym.remote.model_files import read_bundle
from tinkergym.testing.bundles import FAMILIES, family_bundle

NANO = Path(backend.__file__).parent / "models" / "nano"
MORE = pytest.mark.full("one template of several")


def save(bundle, folder):
    folder.mkdir()
    (folder / "tokenizer.json").write_text(bundle.tokenizer_json)
    (folder / "chat_template.jinja").write_text(bundle.chat_template)
    (folder / "tokenizer_config.json").write_text(json.dumps(bundle.special_tokens))
    return folder


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=[] if name == "mistral" else [pytest.mark.full("one family of four")])
        for name in sorted(FAMILIES)
    ],
)
def test_renders_every_family_exactly(tg_run, tmp_path, family):
    result = tg_run("tokens", save(family_bundle(family), tmp_path / family), "--json")
    found = json.loads(result.output)
    assert (result.exit_code, found["exact"]) == (0, True)
    assert found["prefix_preserving"] is (family in ("llama", "gemma"))
    assert found["rewrites_history"] is (family == "mistral")
    assert found["conversations"]["plain"]["outcome"] == "same"
    assert FAMILIES[family].stop in found["stop_ids"].values()


@pytest.mark.parametrize(
    ("name", "stops", "rewrites"),
    [
        ("gptoss", {"<eos>", "<|return|>", "<|call|>"}, True),
        pytest.param("glm4moe", {"<eos>", "<|user|>", "<|observation|>"}, False, marks=MORE),
        pytest.param("phi3", {"<eos>", "<|end|>"}, False, marks=MORE),
    ],
)
def test_reads_stop_tokens_off_the_template_and_reports_segments(tg_run, tmp_path, name, stops, rewrites):
    source = shipped_template(name)
    if source is None:
        pytest.skip("trl, which ships these templates, is not installed")
    result = tg_run("tokens", save(template_bundle(name, source), tmp_path / name), "--json")
    found = json.loads(result.output)
    assert (result.exit_code, found["exact"], found["rewrites_history"]) == (0, True, rewrites)
    assert set(found["stop_ids"].values()) == stops
    assert found["conversations"]["plain"]["segments"] == (3 if rewrites else 1)


def test_renders_the_shipped_model_exactly(tg_run):
    result = tg_run("tokens", NANO)
    assert result.exit_code == 0
    assert "an answer ends with  <|im_end|> (2)" in result.output
    assert "no difference outside the policy's answers" in result.output


def test_renders_with_template_variables(tg_run):
    result = tg_run("tokens", NANO, "--template-set", "no_such=1")
    assert (result.exit_code, "no_such" in result.output) == (2, True)


def test_finds_model_of_the_service_by_its_name(tg_run, start_service):
    start_service()
    assert tg_run("tokens", "nano").exit_code == 0


def test_catches_tokenizer_that_writes_turns_differently(tg_run, tmp_path):
    folder = save(family_bundle("gemma"), tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    # As SentencePiece models do: whatever is tokenised begins with a space, so parts are not like the whole.
    tokenizer["normalizer"] = {"type": "Prepend", "prepend": " "}
    for token in tokenizer["added_tokens"]:
        token["normalized"] = True
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    result = tg_run("tokens", folder)
    assert result.exit_code == 1
    assert "different plain" in result.output
    assert "the tokens differ outside the policy's answers" in result.output


@pytest.mark.parametrize(
    ("file", "message"),
    [("tokenizer.json", "has no tokenizer.json"), ("chat_template.jinja", "has no chat template")],
)
def test_rejects_directory_that_lacks_a_file(tg_run, tmp_path, file, message):
    folder = save(family_bundle("llama"), tmp_path / "model")
    (folder / file).unlink()
    result = tg_run("tokens", folder)
    assert (result.exit_code, message in result.output) == (2, True)


def test_rejects_name_that_nobody_knows(tg_run, monkeypatch, tmp_path):
    monkeypatch.delenv("TINKERGYM_URL", raising=False)
    monkeypatch.setenv("TINKERGYM_HOME", str(tmp_path))
    result = tg_run("tokens", "nobodys-model")
    assert result.exit_code in (1, 2)
    assert "tinkergym serve" in result.output


def test_reads_templates_without_specials_as_the_directory_says():
    bundle = read_bundle(NANO)
    assert Renderer.from_bundle(bundle).stop_ids == bundle.stop_ids == [2]
