import sys

import pytest

from tinkergym.errors import InvalidToolError, ToolArgumentsError, ToolError
from tinkergym.tools import PythonTool
from tinkergym.tools.sandbox.python_run import best_isolation

LEVELS = [
    "limits",
    pytest.param(
        "namespaces",
        marks=pytest.mark.skipif(
            sys.platform != "linux" or best_isolation() != "namespaces",
            reason="this machine offers no namespaces",
        ),
    ),
]


def call(code, **settings):
    return PythonTool(**settings).call({"code": code})


@pytest.fixture(params=LEVELS)
def isolation(request):
    return request.param


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("2**100", "1267650600228229401496703205376"),
        ("x = 6\nprint(x)\nx * 7", "6\n42"),
        ("None", "(the code printed nothing)"),
        (
            "import math, json, random, decimal, fractions, itertools, statistics, re, datetime",
            "(the code printed nothing)",
        ),
        ("print('ä€😀')", "ä€😀"),
        ("import sys; print(1); print(2, file=sys.stderr); print(3)", "1\n2\n3"),
        ("print({'b', 'a', 'c'})", call("print({'b', 'a', 'c'})")),
        ("if __name__ == '__main__': print('run')", "run"),
        ("open('notes', 'w').write('x'); open('notes').read()", "'x'"),
        ("import os; os.listdir()", "[]"),
        ("import sys; sys.stdin.read()", "''"),
    ],
)
def test_runs_code_and_shows_output_and_last_value(code, shown, isolation):
    assert call(code, isolation=isolation) == shown


def test_shows_error_lines_of_the_code_and_none_of_ours(isolation):
    with pytest.raises(ToolError) as caught:
        call("def f():\n    return 1 / 0\nprint('before')\nf()", isolation=isolation)
    text = str(caught.value)
    assert text.startswith("before\nTraceback")
    assert "return 1 / 0" in text
    assert text.endswith("ZeroDivisionError: division by zero")
    assert "launcher" not in text


@pytest.mark.parametrize(
    "code",
    [
        "(" * 10_000,
        "\x00",
        "raise SystemExit(3)",
        "import os; os._exit(125)",
        "def f(): f()\nf()",
        "print('\\ud800')",
    ],
)
def test_blames_only_policy_for_code_that_fails(code, isolation):
    with pytest.raises(ToolError):
        call(code, isolation=isolation)


def test_allows_packages(isolation):
    code = "import jinja2; jinja2.Template('{{ 1 + 1 }}').render()"
    assert call(code, isolation=isolation, site_packages=True) == "'2'"


@pytest.mark.parametrize("arguments", [{}, {"code": 3}, {"code": "1", "x": 1}, {"code": "1" * 300_000}])
def test_checks_arguments(arguments):
    with pytest.raises(ToolArgumentsError):
        PythonTool().call(arguments)


@pytest.mark.parametrize(
    "settings", [{"seconds": 1}, {"wall_seconds": 0}, {"isolation": "none"}, {"processes": "2"}]
)
def test_checks_settings(settings):
    with pytest.raises(InvalidToolError):
        PythonTool(**settings)


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("wall_seconds", 1e7),
        ("wall_seconds", float("nan")),
        ("output_characters", 2.5),
        ("cpu_seconds", 2.5),
        ("memory_megabytes", 200.5),
        ("memory_megabytes", 10**20),
        ("processes", True),
    ],
)
def test_rejects_limit_that_the_sandbox_cannot_set(limit, value):
    with pytest.raises(InvalidToolError) as refused:
        PythonTool(**{limit: value})
    assert refused.value.field == limit


def test_says_what_keeps_the_code_in():
    assert PythonTool(isolation="limits").isolation == "limits"
    assert PythonTool().isolation == best_isolation()
