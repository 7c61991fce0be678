import pytest
from typer.testing import CliRunner

from tests.tinkergym.exports import learned  # noqa: F401
from tinkergym.cli import console as _console  # noqa: F401 - keeps the COLUMNS of its import
from tinkergym.cli.main import app
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec


@pytest.fixture
def tg_run(monkeypatch):
    """Run `tinkergym ...` in this process; what it typed and its exit code come back."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments, typed=""):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=typed)

    return run


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, typed: str = ""):
        return CliRunner().invoke(app, list(arguments), input=typed)

    return run


@pytest.fixture
def service(start_service):
    return start_service(lambda prompt: "b2", environments=["board/TicTacToeVs-v0"])


@pytest.fixture
def unplayed(service):
    """Create jobs for clients that are not there: such a job stays as it is."""

    def create(**settings):
        spec = RLSpec(environment=EnvironmentRef(id="board/TicTacToeVs-v0"), rollout="client", **settings)
        return service.jobs.create(spec).job_id

    return create
