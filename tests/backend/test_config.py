from pathlib import Path

import pytest

from backend.config import ServiceConfig, load_config
from backend.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "field", "text"),
    [
        (["prot=9"], "prot", "did you mean port"),
        (["port=99999"], "port", "65535"),
        (["lease_seconds=3"], "lease_seconds", "twice heartbeat_seconds"),
        (["limits.body_byte=9"], "limits.body_byte", "did you mean limits.body_bytes"),
        (["limits.image_bytes=4194305"], "limits.image_bytes", "4194304"),
        (["limits.image_pixels=16000001"], "limits.image_pixels", "16000000"),
        (["port.x=3"], "port", "integer"),
        (["idle_policies=0"], "idle_policies", "1"),
        (["port=1", "port.x=3"], "port.x", "is not a section"),
        (['preload=["x"]', "allow_any_model=false"], "preload", "add it there"),
        (["prices.job_hour=1e308"], "prices.job_hour", "1000000000"),
        (["port"], "", "key=value"),
        (["device=cpu"], "device", "placement.gpus=0"),
        (["engine=vllm", "placement.gpus=0", "vllm.full_weights=device"], "vllm.full_weights", "on a GPU"),
        (["engine=vllm", "limits.prompt_images=65"], "limits.prompt_images", "at most 64 with engine=vllm"),
        (["vllm.full_weights=device"], "vllm.full_weights", "not engine=transformers"),
    ],
)
def test_names_wrong_setting_with_what_to_do(settings, field, text):
    with pytest.raises(ConfigError) as caught:
        load_config(None, settings)
    assert caught.value.field == field
    assert text in str(caught.value)


def test_prefers_setting_on_command_line_to_the_file(tmp_path):
    file = tmp_path / "service.toml"
    file.write_text('port = 1000\nhost = "127.0.0.2"\n[limits]\nrequest_seconds = 2.5\n')
    config = load_config(file, ["port=2000", "limits.body_bytes=4096", "models.tiny=/some/where"])
    assert (config.port, config.host) == (2000, "127.0.0.2")
    assert (config.limits.request_seconds, config.limits.body_bytes) == (2.5, 4096)
    assert config.model_paths["tiny"] == "/some/where"
    assert Path(config.model_paths["nano"]).name == "nano"


@pytest.mark.parametrize("content", ["port = ", None, b"\xff\xfe"])
def test_says_in_one_sentence_that_file_cannot_be_used(tmp_path, content):
    file = tmp_path / "service.toml"
    if isinstance(content, str):
        file.write_text(content)
    elif content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"service\.toml"):
        load_config(file)


def test_finds_in_child_the_settings_its_parent_started_with(tmp_path):
    config = load_config(None, [f"data_dir={tmp_path}", "env_workers=3", "database_url=sqlite:////x/y.db"])
    assert ServiceConfig.from_environment(config.environment()) == config
