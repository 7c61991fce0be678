"""A file that describes nodes, for plans of machines that are not at hand. YAML, TOML or JSON."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from backend.errors import ConfigError
from backend.planning.machines import Machine
from backend.planning.strict_settings import Settings
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.parsing import parse

_GB = 10**9


class NodeEntry(Settings):
    """A node, or several alike."""

    name: str = Field(min_length=1)
    """Shown in the plan."""
    count: int = Field(1, ge=1, le=1000)
    """How many nodes are like it."""
    gpus: int = Field(0, ge=0, le=64)
    """How many it has."""
    gpu_gb: float = Field(80.0, gt=0)
    """Memory of each."""
    cpus: float = Field(64.0, ge=0)
    memory_gb: float = Field(512.0, gt=0)
    labels: dict[str, str] = Field(default_factory=dict)
    """Those that placements may ask for."""


class NodesFile(Settings):
    """The file."""

    nodes: list[NodeEntry] = Field(min_length=1)


def read_nodes(file: Path) -> list[Machine]:
    """Read the nodes.

    Raises:
        ConfigError: It cannot be read, or says something impossible; in one sentence.
    """
    try:
        entries = parse(NodesFile, _content(file)).nodes
    except InvalidRequestError as error:
        raise ConfigError(f"{file.name}: {error.message}", hint=error.hint, field=error.field) from None
    names = [name for entry in entries for name in _names(entry)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(
            f"{file.name}: two nodes are called {twice!r}", hint="rename one, or use count", field="nodes"
        )
    return [
        Machine(
            node_id=name,
            cpus=entry.cpus,
            memory_bytes=int(entry.memory_gb * _GB),
            gpus=(int(entry.gpu_gb * _GB),) * entry.gpus,
            labels=entry.labels,
        )
        for entry in entries
        for name in _names(entry)
    ]


def _names(entry: NodeEntry) -> list[str]:
    return [entry.name] if entry.count == 1 else [f"{entry.name}-{n + 1}" for n in range(entry.count)]


def _content(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        match file.suffix:
            case ".toml":
                content: Any = tomllib.loads(text)
            case ".json":
                content = json.loads(text)
            case _:
                content = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}", field="--nodes") from error
    except (ValueError, yaml.YAMLError) as error:
        first = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{file} is not valid {file.suffix.lstrip('.') or 'YAML'}: {first}", field="--nodes"
        ) from error
    if isinstance(content, list):
        content = {"nodes": content}
    if not isinstance(content, dict):
        raise ConfigError(
            f"{file} does not list nodes", hint="write nodes: [{name: a, gpus: 8}]", field="--nodes"
        )
    return content
