import pytest

from backend.engines.vllm.settings import engine_arguments, process_environment, sleep_mode
from backend.settings.served_models import VllmSettings

SHAPES = {"model.layers.0.self_attn.q_proj.weight": (8, 8)}


def arguments(folder, device="cpu", **settings):
    return engine_arguments(VllmSettings(**settings), folder, 512, device, shapes=SHAPES)


def test_takes_memory_in_bytes_on_cpu_and_compiles_nothing(tmp_path):
    found = arguments(tmp_path, cache_bytes=2**20)
    assert found["kv_cache_memory_bytes"] == 2**20
    assert "gpu_memory_utilization" not in found
    assert found["enforce_eager"]
    assert not found["enable_sleep_mode"]


def test_takes_memory_share_on_gpu_and_frees_it_by_sleep(tmp_path):
    found = arguments(tmp_path, "cuda", gpu_memory=0.4)
    assert found["gpu_memory_utilization"] == 0.4
    assert found["enable_sleep_mode"]
    assert not arguments(tmp_path, "cuda", sleep="end")["enable_sleep_mode"]


def test_serves_model_without_a_tokenizer(tmp_path):
    assert arguments(tmp_path)["skip_tokenizer_init"]
    (tmp_path / "tokenizer.json").write_text("{}")
    assert not arguments(tmp_path)["skip_tokenizer_init"]


def test_has_room_for_one_adapter_more_than_asked_for(tmp_path):
    assert arguments(tmp_path, adapters_at_once=3)["max_loras"] == 4


@pytest.mark.parametrize(
    ("device", "sleep", "means"),
    [("cpu", "auto", "end"), ("cuda", "auto", "offload"), ("cuda", "end", "end")],
)
def test_derives_the_meaning_of_sleep_from_device(device, sleep, means):
    assert sleep_mode(VllmSettings(sleep=sleep), device) == means


@pytest.mark.parametrize(
    ("device", "visible", "seen"),
    [
        ("cuda:1", None, "1"),
        ("cuda:1", "4,6", "6"),
        ("cuda", "4,6", "4,6"),
        ("cuda", None, None),
        ("cpu", None, None),
    ],
)
def test_shows_processes_the_gpu_that_this_one_means(device, visible, seen, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = process_environment(tmp_path, [device], threads=2)
    assert found.get("CUDA_VISIBLE_DEVICES") == seen
    assert found["OMP_NUM_THREADS"] == "2"
    assert found["TMPDIR"] == str(tmp_path)
