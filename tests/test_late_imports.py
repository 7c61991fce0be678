"""Imports inside functions: only at these doors of what is slow to load, or may not be installed."""

import ast
import re
from pathlib import Path

from scripts.statements import statements

ROOT = Path(__file__).parents[1]
DOORS = {
    ("tinkergym/__main__.py", "tinkergym.cli.json_output"),  # Ctrl-C while they are imported ends the command
    ("tinkergym/__main__.py", "tinkergym.cli.main"),
    ("tinkergym/algorithms/__init__.py", "tinkergym.schema.algorithm_registry"),  # which imports these files
    ("tinkergym/bridges/verifiers_worker.py", "verifiers"),
    ("tinkergym/bridges/verifiers_worker.py", "verifiers.clients"),
    ("tinkergym/bridges/verifiers_worker.py", "verifiers.types"),
    ("tinkergym/bridges/verifiers_worker.py", "verifiers.v1.utils.loaders"),
    ("tinkergym/games/parallel.py", "pettingzoo.utils.conversions"),
    ("tinkergym/network/chat_endpoint.py", "httpx"),
    ("tinkergym/registration/games.py", "tinkergym.games.against_opponent"),  # pettingzoo
    ("tinkergym/registration/games.py", "tinkergym.games.game_env"),  # pettingzoo
    ("tinkergym/testing/checks_game.py", "pettingzoo.test"),
    ("tinkergym/user_code/returned_values.py", "asyncio"),
    ("tinkergym/wrappers/train_remotely.py", "tinkergym.wrappers.train_game"),  # pettingzoo
    ("backend/catalog/models.py", "backend.catalog"),  # huggingface_hub
    ("backend/settings/service_places.py", "backend.store.object_blobs"),  # fsspec
    ("backend/engines/vllm/host.py", "backend.engines.vllm.host_images"),  # vLLM's processors of images
    ("backend/jobs/kl_metric.py", "torch"),  # in the process of a job's loop
    ("backend/learner/preference_loss.py", "torch"),  # likewise
    ("backend/scheduler/actor_processes.py", "backend.scheduler.ray_ranks"),  # torch
    ("backend/scheduler/actor_processes.py", "backend.scheduler.ray_nodes"),  # Ray
    ("backend/scheduler/actor_processes.py", "backend.workers.pool_worker"),  # torch
    ("backend/scheduler/actor_processes.py", "backend.workers.engine_host"),  # torch
    ("backend/scheduler/cluster_door.py", "ray"),
    ("backend/scheduler/cluster_door.py", "ray._private"),
    ("backend/scheduler/cluster_host.py", "backend.scheduler"),  # Ray
    ("backend/scheduler/cluster_host.py", "backend.scheduler.ray_nodes"),  # Ray
    ("backend/processes/image_check.py", "PIL"),  # of its child alone
    ("backend/scheduler/scheduler_host.py", "backend.scheduler"),  # Ray
    ("backend/scheduler/ray_start.py", "ray"),
    ("backend/scheduler/ray_start.py", "ray._private"),
    ("backend/store/place.py", "sqlalchemy"),
    ("backend/store/schema_version.py", "alembic"),
    ("backend/vision/processor.py", "transformers"),  # the processors of one family
}


def late_imports(file):
    """Yield the modules that functions of a file import."""
    text = file.read_text()
    if not re.search(r"^ +(from|import) ", text, re.MULTILINE):
        return
    for function in statements(ast.parse(text)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in statements(function):
                if isinstance(node, ast.ImportFrom):
                    yield node.module
                elif isinstance(node, ast.Import):
                    yield from (one.name for one in node.names)


def test_imports_late_at_known_doors_only():
    files = [file for folder in ("tinkergym", "backend") for file in (ROOT / folder).rglob("*.py")]
    found = {(str(file.relative_to(ROOT)), module) for file in files for module in late_imports(file)}
    assert found == DOORS
