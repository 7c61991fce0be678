import pytest
from typer.testing import CliRunner

from tinkergym.cli.main import app


@pytest.fixture
def tg_run(monkeypatch):
    """Run `tinkergym ...` in this process; what it typed and its exit code come back."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments, typed=""):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=typed)

    return run
