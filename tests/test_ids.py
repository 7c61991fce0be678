"""Ids are taken apart in `tinkergym/schema/ids.py` only, names of processes in `process_runner.py`."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SPLITS = {"split", "rsplit", "partition", "rpartition"}
SEPARATORS = ("/", ":", "@", "-", "|")
PREFIXES = ("job-", "policy-")
BY_PREFIX = {"startswith", "removeprefix"}
ID_NAMES = re.compile(
    r"(job|policy|episode|lease|session|tenant|pool|worker|engine|node)_id|owner|agent|policy|version"
)
"""What is an id or part of one, by the last name of an f-string's expression."""

NOT_IDS = {
    # Python's `module:name`.
    "backend/admission/bounds.py": 1,
    "tinkergym/bridges/verifiers_worker.py": 1,
    "tinkergym/cli/named_environment.py": 2,  # and `ENV:WEIGHT`
    "tinkergym/registration/packs.py": 2,
    "tinkergym/schema/seat_tools.py": 1,
    "tinkergym/tools/definition.py": 1,
    # A host's port, a device's number, a path in a URL or a JSON schema.
    "backend/engines/vllm/settings.py": 1,
    "backend/dashboard/pages.py": 2,
    "backend/gateway/host_check.py": 1,
    "backend/scheduler/cluster_door.py": 1,
    "backend/store/object_blobs.py": 1,
    "tinkergym/testing/fake_connection.py": 1,
    "tinkergym/tools/signature.py": 1,
    # A pack's name.
    "tinkergym/cli/new_env_template.py": 1,
    # The process that a temporary folder belongs to.
    "backend/app/temporary_folders.py": 1,
    "backend/engines/vllm/folder.py": 1,
    # The key that takes apart the names of our processes in Ray.
    "backend/scheduler/process_runner.py": 2,
    # Where a command is: `module:function`.
    "tinkergym/cli/main.py": 1,
    # A setting with a number or a name: `retry:2`, `only:black`.
    "tinkergym/schema/jobs/played_spec.py": 1,
    "tinkergym/schema/jobs/rl.py": 1,
    "tinkergym/wrappers/verbalize.py": 1,
}
"""How often each module splits something else than an id."""

NO_NEW_IDS = {
    # A thread's name, and the folder of a version.
    "backend/workers/pool_jobs.py": 1,
    "backend/engines/vllm/published_policies.py": 1,
    # Services that tests start, which number their jobs.
    "backend/testing/scripted_service.py": 1,
    "tinkergym/testing/fake_connection.py": 1,
}
"""How often each module writes the beginning of an id where none is made."""

NOT_TAKEN_APART = {
    # The id of a request: any text that is unique.
    "backend/policies/parity.py": 1,
    "tinkergym/agent/episode_plan.py": 1,
    # The typed key of a process, and other names in Ray.
    "backend/scheduler/process_runner.py": 2,
    "backend/scheduler/ray_gpus.py": 1,
    "backend/scheduler/ray_groups.py": 1,
    # What a running baseline is of.
    "backend/jobs/train_batch.py": 1,
    # What vLLM's log calls a policy.
    "backend/engines/vllm/published_policies.py": 1,
}
"""How often each module joins ids to a text that is only compared or shown."""


def modules():
    for package in ("tinkergym", "backend"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name != "tinkergym/schema/ids.py":
                yield name, ast.parse(path.read_text("utf-8"))


def constants_of(tree):
    """Return the texts that a module gives names to."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def is_split(node, named):
    """Whether a call takes a text apart at a separator of ids, or asks for the beginning of one."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
        return False
    parts = list(ast.walk(node.args[0]))
    first = [one.value for one in parts if isinstance(one, ast.Constant)]
    first += [named.get(one.id) for one in parts if isinstance(one, ast.Name)]
    asked = SEPARATORS if node.func.attr in SPLITS else PREFIXES if node.func.attr in BY_PREFIX else ()
    return any(one in asked for one in first)


def makes_id(node):
    """Whether an f-string is an id that begins with what it is the id of."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) and len(node.values) > 1 else None
    return isinstance(first, ast.Constant) and first.value in PREFIXES


def joins_id(node):
    """Whether an f-string joins two values at a separator, one of which is named like an id."""
    if not isinstance(node, ast.JoinedStr):
        return False
    parts = node.values
    for before, between, after in zip(parts, parts[1:], parts[2:], strict=False):
        if isinstance(between, ast.Constant) and between.value in ("/", ":", "@", "|"):
            names = [
                ast.unparse(part.value).rpartition(".")[2]
                for part in (before, after)
                if isinstance(part, ast.FormattedValue)
            ]
            if between.value == "@" or any(ID_NAMES.fullmatch(name) for name in names):
                return True
    return False


@cache
def found():
    """How often each module splits, joins and makes ids, by one look at all of them."""
    splits, joins, makes = Counter(), Counter(), Counter()
    for name, tree in modules():
        named = constants_of(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                splits[name] += is_split(node, named)
            elif isinstance(node, ast.JoinedStr):
                joins[name] += joins_id(node)
                makes[name] += makes_id(node)
    return +splits, +joins, +makes


def test_splits_no_id_outside_one_module():
    assert found()[0] == NOT_IDS


def test_joins_no_id_outside_one_module():
    assert found()[1] == NOT_TAKEN_APART


def test_makes_no_id_outside_one_module():
    assert found()[2] == NO_NEW_IDS
