"""Generate the reference pages: Python, HTTP, the service's settings, the command line.

The settings' page is in the repository, so that it can be read without the site: `python -m
scripts.docs_reference` writes it again.

Imports the SDK, the command line and the gateway, none of which loads torch.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import textwrap
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SETTINGS_PAGE = Path(__file__).parents[1] / "docs" / "reference" / "service_settings.md"

PYTHON_PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "client": ("Client, jobs and policies", ("Client", "Job", "Policy")),
    "training": (
        "Training settings",
        (
            "GRPO",
            "LoRA",
            "FullParameters",
            "Sampling",
            "Limits",
            "Budget",
            "Train",
            "EvaluateEvery",
        ),
    ),
    "environments": ("Environments", ("TextEnv", "SingleTurnEnv", "make", "register")),
    "games": ("Games", ("TextGame", "make_game", "register_game")),
    "rewards_and_tools": ("Rewards and tools", ("Rubric", "tool")),
    "evaluation": ("Evaluation", ("evaluate", "Evaluation")),
}
"""The names of `tinkergym`, by page; its errors are on the page of `tinkergym.errors`."""

PACKAGE_PAGES = (
    "algorithms",
    "losses",
    "opponents",
    "tasks",
    "registration",
    "spaces",
    "wrappers",
    "rubrics",
    "tools",
    "testing",
    "reporting",
    "certificates",
)
"""Packages whose `__all__` gets its own page."""


def reference_files() -> dict[str, str]:
    """Return all generated files by their path on the site."""
    return {
        **python_pages(),
        **http_files(),
        "reference/command_line.md": command_line_page(),
    }


def python_pages(public: Iterable[str] | None = None) -> dict[str, str]:
    """Return the pages of the Python API, in the syntax of mkdocstrings; `public` are tinkergym's names.

    Raises:
        ValueError: A public name of `tinkergym` has no page, or a page lists a private name.
    """
    public = importlib.import_module("tinkergym").__all__ if public is None else public
    paged = {name for _, names in PYTHON_PAGES.values() for name in names}
    documented = {name for name in public if not name.endswith("Error")} - {*PACKAGE_PAGES, "errors"}
    if paged != documented:
        raise ValueError(
            f"PYTHON_PAGES in scripts/docs_reference.py and tinkergym differ: {paged ^ documented}"
        )
    pages, rows = {}, []
    for page, (title, names) in PYTHON_PAGES.items():
        pages[f"reference/python/{page}.md"] = _api_page(title, "tinkergym", names)
        rows.append((title, page, names))
    for package in PACKAGE_PAGES:
        there = importlib.import_module(f"tinkergym.{package}").__all__
        names = tuple(name for name in there if name not in paged - {"tool", "Rubric"})
        pages[f"reference/python/{package}.md"] = _api_page(
            f"tinkergym.{package}", f"tinkergym.{package}", names
        )
        rows.append((f"tinkergym.{package}", package, names))
    pages["reference/python/errors.md"] = _errors_page()
    rows.append(("Errors", "errors", ("tinkergym.errors",)))
    lines = [
        f"| [{title}]({page}.md) | {', '.join(f'`{n}`' for n in names)} |" for title, page, names in rows
    ]
    pages["reference/python/index.md"] = (
        "# Python API\n\nThe names below are public. Everything else may change without notice.\n\n"
        "| page | names |\n|---|---|\n" + "\n".join(lines) + "\n"
    )
    return pages


def _api_page(title: str, module: str, names: tuple[str, ...]) -> str:
    parts = [f"# {title}"]
    home = importlib.import_module(module)
    for name in names:
        value = getattr(home, name)
        # Where the name is defined: mkdocstrings cannot read lazy imports of `__init__`.
        where = getattr(value, "__module__", None)
        if isinstance(where, str) and where.startswith("tinkergym"):
            parts.append(f"::: {where}.{getattr(value, '__qualname__', name)}{_options(value)}")
        else:  # an alias such as `Task`, listed under the module that defines it
            parts.append(f"::: {module}.{name}")
    return "\n\n".join(parts) + "\n"


def _options(value: Any) -> str:
    """Show the inherited methods of a client, a job and a policy: their parents have no page of their own."""
    parents = getattr(value, "__mro__", ())[1:]
    is_divided = any(parent.__module__.startswith("tinkergym.remote.") for parent in parents)
    return "\n    options:\n      inherited_members: true" if is_divided else ""


def _errors_page() -> str:
    return (
        "# Errors\n\nEvery error is a `TinkerGymError` with a `message`, a `hint` and, where a setting is "
        "wrong, a `field`.\n\n::: tinkergym.errors\n    options:\n      show_root_heading: false\n"
    )


def settings_page() -> str:
    """Return the page of the operator's settings, from `backend/config.py` and `backend/settings/`."""
    homes = ("config", "planning.wishes", "settings.gateway_limits", "settings.served_models")
    config, wishes, gateway, models = (importlib.import_module(f"backend.{home}") for home in homes)
    intro = (
        "# Service settings\n\n"
        "The operator's settings. Write them to a TOML file for `tinkergym serve --config FILE.toml`, or "
        "pass them one by one:\n\n"
        "```sh\ntinkergym serve --set lease_seconds=60 --set limits.body_bytes=1000000\n```\n\n"
        "Unknown keys and values out of range are refused. Settings of a job are on [another page]"
        "(job_settings.md); [Run the service](../operating/service.md) explains the ones you need first.\n"
    )
    sections = [
        ("Service", "", config.ServiceConfig),
        ("Placement of models", "placement.", wishes.ModelPlacement),
        ("Placement of learners", "placement.learner.", wishes.LearnerPlacement),
        ("Limits", "limits.", gateway.GatewayLimits),
        ("Ray", "ray.", config.RaySettings),
        ("vLLM", "vllm.", models.VllmSettings),
        ("Dashboard", "dashboard.", config.DashboardSettings),
        ("Prices", "prices.", config.Prices),
    ]
    parts, below = [intro], {"limits", "ray", "vllm", "learner", "dashboard", "prices"}
    for title, prefix, model in sections:
        rows = setting_rows(model, prefix, leave_out=below)
        parts.append(f"## {title}\n\n| key | default | |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def setting_rows(model: Any, prefix: str = "", leave_out: set[str] = frozenset()) -> list[str]:
    """Return a table row per field: its name, its default, and its docstring."""
    texts = field_texts(model)
    rows = []
    for name, field in model.model_fields.items():
        if name not in leave_out:
            rows.append(f"| `{prefix}{name}` | {_default(name, field)} | {_cell(texts.get(name, ''))} |")
    return rows


def field_texts(model: Any) -> dict[str, str]:
    """Return the docstrings of a class's fields, including its parents'."""
    texts: dict[str, str] = {}
    for parent in reversed(model.__mro__):
        if parent.__module__.split(".")[0] not in {"tinkergym", "backend"}:
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(parent))).body[0].body
        for field, below in pairwise(body):
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and is_text and isinstance(below.value.value, str):
                texts[field.target.id] = " ".join(below.value.value.split())
    return texts


_COMPUTED = {"data_dir": "`$TINKERGYM_HOME`, else `~/.tinkergym`", "torch_threads": "all cores"}
_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def _default(name: str, field: Any) -> str:
    if name in _COMPUTED:
        return _COMPUTED[name]
    if name == "models":
        return ", ".join(f"`{model}`" for model in field.default)
    value = field.default
    if hasattr(value, "model_fields_set"):
        return "see below"
    if name.endswith("_bytes") and isinstance(value, int):
        for size, unit in _SIZES:
            if value and value % size == 0:
                return f"{value // size} {unit}"
    if value is None:
        return "none"
    return f"`{json.dumps(value)}`"


def command_line_page() -> str:
    """Return the page of all commands, from the parsers of the command line."""
    main = importlib.import_module("tinkergym.cli.main")
    parts = [
        "# Command line\n\n`tinkergym COMMAND --help` shows the same in a terminal. `python -m tinkergym` "
        "runs the same program. Every command takes `--json`: standard output is then JSON and nothing else "
        "([Use it in scripts](../guides/evaluation.md#use-it-in-scripts)).\n",
    ]
    for name in main.COMMANDS:
        parts += _command(f"tinkergym {name}", main.load(name))
    return "\n".join(parts)


def _command(path: str, command: Any) -> list[str]:
    inner = getattr(command, "commands", {})
    runs_alone = not inner or command.invoke_without_command
    usage = [path, *(["[OPTIONS]"] if runs_alone else []), *(_value(one) for one in _arguments(command))]
    usage += [] if runs_alone else ["COMMAND"]
    heading = "##" if path.count(" ") == 1 else "###"
    parts = [f"{heading} `{path}`", "", _plain(command.help or ""), "", "```", " ".join(usage), "```", ""]
    if rows := [_parameter(one) for one in command.params if not one.hidden and one.name != "help"]:
        parts += ["| option | default | |", "|---|---|---|", *rows, ""]
    for name, child in inner.items():
        parts += _command(f"{path} {name}", child)
    return parts


def _arguments(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "argument"]


def _value(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    return (
        parameter.metavar or (kind.__name__ if isinstance(kind, type) and kind is not str else "TEXT").upper()
    )


def _parameter(one: Any) -> str:
    if one.param_type_name == "argument":
        shown = f"`{_value(one)}`"
    else:
        shown = ", ".join(f"`{name}`" for name in [*one.opts, *one.secondary_opts])
        shown += "" if one.is_flag or one.count else f" `{_value(one)}`"
    plain = isinstance(one.default, str | int | float) and not isinstance(one.default, bool)
    default = f"`{one.default}`" if plain and one.default != "" else ""
    return f"| {shown} | {default} | {_cell(_plain(one.help or ''))} |"


def _cell(text: str) -> str:
    """Return a text for a table cell: on one line, without bars."""
    return " ".join(text.split()).replace("|", "\\|")


def _plain(text: str) -> str:
    """Return a help text without Rich's markup, as Markdown."""
    text = re.sub(r"\[/?(bold|dim|italic|cyan|green)?\]", "", inspect.cleandoc(text).replace("\b", ""))
    return re.sub(r"^(Example: )(.+)$", r"\1`\2`", text, flags=re.MULTILINE).replace("<", "&lt;")


def http_files() -> dict[str, str]:
    """Return the pages of the HTTP API and the OpenAPI document from which they are generated."""
    config = importlib.import_module("backend.config").ServiceConfig(data_dir="/")
    app = importlib.import_module("backend.gateway.app").create_app(SimpleNamespace(config=config))
    document = app.openapi()
    return {
        "reference/openapi.json": json.dumps(document, indent=1, sort_keys=True) + "\n",
        "reference/http.md": _operations_page(document),
        "reference/http_schemas.md": _schemas_page(document),
    }


def _operations_page(document: dict[str, Any]) -> str:
    parts = [
        "# HTTP API\n\nThe SDK and the command line use these routes and no others, but those below "
        "`/openai/v1`, which are for [other programs](../guides/serve_policy.md). A running service shows "
        "the OpenAPI document at `/v1/openapi.json`; [a copy](openapi.json) comes with this site. The bodies "
        "are on [a page of their own](http_schemas.md).\n\n"
        "Send the key as `Authorization: Bearer tg-...`. An error is "
        '`{"error": {"type", "message", "hint", "field"}}`, and `type` is the name of the class in '
        "[`tinkergym.errors`](python/errors.md). Below `/openai/v1` errors have the format of the "
        "OpenAI API.\n",
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(method.upper(), path, operation))
    return "\n".join(parts)


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    lines = [f"## `{method} {path}`", "", operation.get("description", operation.get("summary", "")), ""]
    rows = [
        f"| `{one['name']}` | {one['in']} | {_type(one.get('schema', {}))} | "
        f"{'yes' if one.get('required') else ''} |"
        for one in operation.get("parameters", [])
    ]
    if rows:
        lines += ["| parameter | in | type | required |", "|---|---|---|---|", *rows, ""]
    if body := _content(operation.get("requestBody", {})):
        lines += [f"Body: {body}.", ""]
    for status, response in operation.get("responses", {}).items():
        if status.startswith("2"):
            lines += [f"Returns {status}" + (f": {content}." if (content := _content(response)) else "."), ""]
    return "\n".join(lines)


def _content(holder: dict[str, Any]) -> str:
    content = holder.get("content", {})
    return " or ".join(
        f"{_type(kind.get('schema', {})) or 'data'} (`{media}`)"
        if media != "application/json"
        else _type(kind.get("schema", {}))
        for media, kind in content.items()
    )


def _schemas_page(document: dict[str, Any]) -> str:
    parts = ["# HTTP bodies\n\nThe JSON objects of the [HTTP API](http.md), by name.\n"]
    for name, schema in sorted(document.get("components", {}).get("schemas", {}).items()):
        parts.append(f"## {name}\n")
        if text := schema.get("description", ""):
            parts.append(_cell(text) + "\n")
        if "enum" in schema:
            parts.append(", ".join(f"`{json.dumps(value)}`" for value in schema["enum"]) + "\n")
        if properties := schema.get("properties"):
            required = schema.get("required", [])
            rows = [
                f"| `{field}` | {_type(value)} | {'required' if field in required else _shown(value)} | "
                f"{_cell(value.get('description', ''))} |"
                for field, value in properties.items()
            ]
            parts += ["| field | type | default | |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"]
    return "\n".join(parts)


def _shown(schema: dict[str, Any]) -> str:
    text = json.dumps(schema["default"]) if "default" in schema else ""
    return f"`{text}`" if text and len(text) < 60 else ""


def _type(schema: dict[str, Any]) -> str:
    if reference := schema.get("$ref"):
        name = reference.rsplit("/", 1)[-1]
        return f"[{name}](http_schemas.md#{name.lower()})"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(filter(None, map(_type, choices))))
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    if values:
        return " or ".join(f"`{json.dumps(value)}`" for value in values)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {})) or 'values'}"
    if isinstance(inner := schema.get("additionalProperties"), dict):
        return f"object of {_type(inner) or 'values'}"
    return str(schema.get("type", ""))


if __name__ == "__main__":
    SETTINGS_PAGE.write_text(settings_page(), encoding="utf-8")
