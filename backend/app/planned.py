"""`python -m backend.app.planned`: what the service would place where, and what not; starts nothing."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from backend.admission.model_wishes import own_machine, wish_of
from backend.config import ServiceConfig, load_config
from backend.errors import ConfigError
from backend.planning.gpu_table import gpu_table
from backend.planning.machines import Machine, NotPlaced, Placed
from backend.planning.model_plan import plan
from backend.planning.nodes_file import read_nodes
from backend.scheduler.cluster_door import cluster_nodes
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.errors import TinkerGymError, UnknownModelError

_ALONE = "as if nothing ran on these nodes yet"
NodesOf = Callable[[ServiceConfig], list[Machine]]


def main(arguments: Sequence[str] | None = None, nodes_of: NodesOf = cluster_nodes) -> int:
    """Print the plan; return 1 if a model has no place.

    Args:
        arguments: Of the command line.
        nodes_of: Returns the nodes of the cluster in the settings.
    """
    parser = argparse.ArgumentParser(prog="python -m backend.app.planned", description=__doc__)
    parser.add_argument("models", nargs="*", help="models by name; by default preload and those of `models`")
    parser.add_argument("--config", type=Path, help="the service's TOML file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for serve")
    parser.add_argument("--nodes", type=Path, help="a YAML, TOML or JSON file with nodes")
    parser.add_argument("--table", action="store_true", help="print which model fits on which GPUs")
    parser.add_argument("--json", action="store_true", help="print one JSON document, for scripts")
    options = parser.parse_args(arguments)
    if options.table:
        print(json.dumps({"table": gpu_table()}) if options.json else gpu_table())
        return 0
    try:
        config = load_config(options.config, options.set)
        machines = _machines(config, options.nodes, nodes_of)
        if options.nodes is not None and not config.ray.address:
            # Other nodes than this machine are a cluster's, and divided by CPUs and memory too.
            config = config.model_copy(update={"ray": config.ray.model_copy(update={"address": "auto"})})
        models = _models(config, options.models)
        found = plan(machines, [wish_of(config, model) for model in models])
    except TinkerGymError as error:
        print(f"tinkergym plan: {error}", file=sys.stderr)
        if options.json:
            print(json.dumps({"error": error.to_wire()}))
        return 1
    if options.json:
        print(
            json.dumps({"nodes": [_node(m) for m in machines], "models": [_model(p) for p in found.items()]})
        )
    else:
        lines = [line for placed in found.items() for line in _lines(placed)]
        print("\n".join([*map(_node_line, machines), f"{_ALONE}:", *lines]))
    return 0 if all(isinstance(each, Placed) for each in found.values()) else 1


def _machines(config: ServiceConfig, nodes: Path | None, nodes_of: NodesOf) -> list[Machine]:
    if nodes is not None:
        return read_nodes(nodes)
    if config.ray.address:
        try:
            return nodes_of(config)
        except ConfigError as error:
            hint = "describe the nodes in a file and pass --nodes FILE"
            hint = f"{error.hint}, or {hint}" if error.hint else hint
            raise ConfigError(error.message, hint=hint, field="--nodes") from error
    return [own_machine()]


def _models(config: ServiceConfig, named: Sequence[str]) -> list[str]:
    models = list(named) or list(
        dict.fromkeys([*config.preload, *(model for model in config.models if model not in PACKAGED_MODELS)])
    )
    for model in models:
        if model not in config.models and not Path(model).expanduser().is_dir() and "/" not in model:
            raise UnknownModelError(
                f"unknown model {model!r}",
                hint=f"choose one of {', '.join(sorted(config.models))}, a folder or a hub id",
                field="MODEL",
            )
    return models


def _gb(size: int) -> float:
    return round(size / 1e9, 1)


def _node(machine: Machine) -> dict[str, Any]:
    return {
        "name": machine.node_id,
        "cpus": machine.cpus,
        "memory_gb": _gb(machine.memory_bytes),
        "gpus_gb": [_gb(gpu) for gpu in machine.gpus],
        "labels": dict(machine.labels),
    }


def _model(item: tuple[str, Placed | NotPlaced]) -> dict[str, Any]:
    name, found = item
    if isinstance(found, NotPlaced):
        return {"model": name, "placed": False, "forever": found.forever, "reason": found.reason}
    parts = [
        {
            "kind": part.kind,
            "number": part.number,
            "node": part.node_id,
            "cpus": part.cpus,
            "memory_gb": _gb(part.memory_bytes),
            "gpus": list(part.gpus),
            "gpu_gb": _gb(part.gpu_bytes),
        }
        for part in found.parts
    ]
    return {"model": name, "placed": True, "sleeps": found.sleeps, "parts": parts}


def _node_line(machine: Machine) -> str:
    sizes = sorted({f"{gpu / 1e9:.0f} GB" for gpu in machine.gpus})
    gpus = f"{len(machine.gpus)} GPUs of {' and '.join(sizes)}" if sizes else "no GPU"
    labels = "".join(f", {name}={value}" for name, value in machine.labels.items())
    return f"{machine.node_id}: {gpus}, {machine.cpus:g} CPUs, {machine.memory_bytes / 1e9:.0f} GB{labels}"


def _lines(item: tuple[str, Placed | NotPlaced]) -> list[str]:
    name, found = item
    if isinstance(found, NotPlaced):
        return [f"{name}: {'cannot be placed' if found.forever else 'waits'}, {found.reason}"]
    ranks, engines = found.of("rank"), found.of("engine")
    pool = found.of("pool")[0]
    if not found.claims:
        return [f"{name}: on the CPUs of {pool.node_id}, learner processes: {len(ranks) + 1}"]
    sizes = {(node_id, gpu): size for node_id, gpu, size in found.claims}
    turns = "; the engine sleeps while it learns" if found.sleeps else ""
    each = len(engines[0].gpus)
    over = f" over {each} GPUs each" if each > 1 else ""
    lines = [f"{name}: learner ranks: {len(ranks)}, engines: {len(engines)}{over}{turns}"]
    for node_id in dict.fromkeys(node_id for node_id, _ in sizes):
        gpus = sorted(gpu for node, gpu in sizes if node == node_id)
        most = max(size for (node, _), size in sizes.items() if node == node_id)
        numbers = ", ".join(map(str, gpus))
        lines.append(f"  {node_id}: GPU {numbers}, up to {most / 1e9:.1f} GB of each")
    return lines


if __name__ == "__main__":
    sys.exit(main())
