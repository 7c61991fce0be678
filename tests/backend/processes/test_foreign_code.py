import pytest

from backend.processes.foreign_code import environment_for_packs

SECRET = (
    *("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "WANDB_API_KEY"),
    *("RAY_AUTH_TOKEN", "RAY_AUTH_MODE", "TINKERGYM_SERVICE_CONFIG", "TINKERGYM_API_KEY"),
    *("TINKERGYM_ENV_TOKEN", "TINKERGYM_JUDGE_KEY", "TINKERGYM_OPPONENT_KEY", "TINKERGYM_HOME"),
    *("SSH_AUTH_SOCK", "HTTPS_PROXY", "https_proxy", "DATABASE_URL", "PASSWORD", "path"),
)


@pytest.mark.parametrize("name", SECRET)
def test_keeps_a_variable_from_packs_unless_it_is_listed(name):
    assert environment_for_packs([], {name: "1"}) == {}
    assert environment_for_packs([name], {name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "PYTHONHASHSEED", "OMP_NUM_THREADS"),
        *("CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_OFFLINE", "TINKERGYM_DATA", "TINKERGYM_HUB_DATA"),
        *("TINKERGYM_JUDGE_URLS", "TINKERGYM_OPPONENT_URLS", "TINKERGYM_PYTHON_TOOL"),
        *("TINKERGYM_SERVICE_MARK", "TINKERGYM_SCHEDULER_HOST"),
    ],
)
def test_passes_on_what_python_and_the_service_need(name):
    assert environment_for_packs([], {name: "1"}) == {name: "1"}
