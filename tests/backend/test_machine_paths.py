from backend.config import ServiceConfig
from backend.machine_paths import MachinePaths
from tinkergym.errors import UnknownModelError
from tinkergym.testing.made_up_episodes import one_turn_episode
from tinkergym.trajectory.trajectory import StopReason


def test_names_folders_of_the_machine_without_telling_them(tmp_path):
    config = ServiceConfig(data_dir=tmp_path / "data", models={"mine": "/models/secret"})
    paths = MachinePaths(config)
    assert paths.hidden_in(f"{tmp_path}/data/jobs/j: broken") == "<DATA>/jobs/j: broken"
    assert paths.hidden_in("in /models/secret/config.json") == "in <MODEL:mine>/config.json"
    # A folder that only begins with the same letters is another one.
    assert paths.hidden_in("/models/secrets") == "/models/secrets"


def test_keeps_type_and_fields_of_an_error(tmp_path):
    paths = MachinePaths(ServiceConfig(data_dir=tmp_path))
    error = UnknownModelError(f"{tmp_path}/m is gone", hint=f"look in {tmp_path}", field="model")
    hidden = paths.hidden_in_error(error)
    assert type(hidden) is UnknownModelError
    assert (hidden.message, hidden.hint, hidden.field) == ("<DATA>/m is gone", "look in <DATA>", "model")
    assert str(tmp_path) in error.message
    harmless = UnknownModelError("gone")
    assert paths.hidden_in_error(harmless) is harmless


def test_names_files_by_package_in_episode_errors(tmp_path):
    paths = MachinePaths(ServiceConfig(data_dir=tmp_path / "data"))
    error = f'Traceback\n  File "{__file__}", line 3, in step\nOSError: {tmp_path}/data/x and /etc/words'
    failed = one_turn_episode().model_copy(
        update={"error": error, "stop_reason": StopReason.ENVIRONMENT_ERROR}
    )
    told = paths.hidden_in_trajectory(failed).error
    assert told == (
        'Traceback\n  File "tests/backend/test_machine_paths.py", line 3, in step\n'
        "OSError: <DATA>/x and /etc/words"
    )
    sound = one_turn_episode()
    assert paths.hidden_in_trajectory(sound) is sound
