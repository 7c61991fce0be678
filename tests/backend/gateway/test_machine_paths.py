from backend.config import ServiceConfig
from backend.gateway.machine_paths import MachinePaths
from tinkergym.errors import UnknownModelError


def test_folders_of_the_machine_are_named_and_not_told(tmp_path):
    config = ServiceConfig(data_dir=tmp_path / "data", models={"mine": "/models/secret"})
    paths = MachinePaths(config)
    assert paths.hidden_in(f"{tmp_path}/data/jobs/j: broken") == "<DATA>/jobs/j: broken"
    assert paths.hidden_in("in /models/secret/config.json") == "in <MODEL:mine>/config.json"
    # A folder that only begins with the same letters is another one.
    assert paths.hidden_in("/models/secrets") == "/models/secrets"


def test_an_error_keeps_its_type_and_fields(tmp_path):
    paths = MachinePaths(ServiceConfig(data_dir=tmp_path))
    error = UnknownModelError(f"{tmp_path}/m is gone", hint=f"look in {tmp_path}", field="model")
    hidden = paths.hidden_in_error(error)
    assert type(hidden) is UnknownModelError
    assert (hidden.message, hidden.hint, hidden.field) == ("<DATA>/m is gone", "look in <DATA>", "model")
    assert str(tmp_path) in error.message
    harmless = UnknownModelError("gone")
    assert paths.hidden_in_error(harmless) is harmless
