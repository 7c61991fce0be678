"""Count what a job's settings pass through: `python -m scripts.settings_walk`, with `-v` by name.

Reads the code and runs none of it. Enters every function that is called with the settings, over all branches,
also merged into a mapping or kept in an object, but not with a single setting. A method is that of the class
that its receiver is annotated with or named after (`self._api`: `Api`), or of all classes with the methods of
such a protocol; else of the only class that has it. Methods of the settings themselves are not entered: a
question to them is no stop on their way. Counts files, folders and re-entries: calls from another folder into
one that was entered before.
"""

import ast
import builtins
import re
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from scripts.statements import statements

ROOT = Path(__file__).parents[1]
PATHS = [path for package in ("tinkergym", "backend") for path in sorted((ROOT / package).rglob("*.py"))]
CARRIERS = {"env", "settings", "env_kwargs", "body", "spec", "lease", "adapter", "algorithm"}
WALKS = {
    "from client.train to the loop": (
        "tinkergym.remote.job_starter:JobStarter.train",
        "backend.gateway.routes_jobs:create_job",  # Over HTTP.
        "backend.workers.pool_jobs:PoolJobs._loop",  # Through the store.
    ),
    "inside Admission.check": ("backend.admission.admission:Admission.check",),
}
KEPT = re.compile(
    r"Spec|Any\b|Environment(Mix|Ref)|JobLease|Mapping|dict|Self|\b(Model|Value|Played|Job|T)\b"
)
"""Return types that may be the settings, or hold them."""
ITSELF = {"model_copy", "with_environments", "with_group_rewards", "seated", "for_agent", "with_players"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Found(NamedTuple):
    """A function, a method, or a class, whose node is then its `__init__` if it has one."""

    module: str
    node: Function | None
    owner: str = ""


def _gives(found: Found) -> bool:
    returns = found.node.returns if found.node and found.node.name != "__init__" else None
    return returns is None or bool(KEPT.search(ast.unparse(returns)))


def _parameters(found: Found) -> list[str]:
    names = [n.arg for n in ast.walk(found.node.args) if isinstance(n, ast.arg)] if found.node else []
    return names[names[:1] in (["self"], ["cls"]) :]


@cache
def _code():
    modules, classes, protocols = {}, {}, set()
    for path in PATHS:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        names, tree = modules.setdefault(name, {}), ast.parse(path.read_text(encoding="utf-8"))
        for node in statements(tree):
            if isinstance(node, ast.ImportFrom):
                names |= {one.asname or one.name: f"{node.module}:{one.name}" for one in node.names}
        for node in [] if "testing" in path.parts else tree.body:
            if isinstance(node, Function):
                names[node.name] = Found(name, node)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Tuple):
                names[ast.unparse(node.target)] = ",".join(map(ast.unparse, node.value.elts))  # Of checks.
            elif isinstance(node, ast.ClassDef):
                inner = {n.name: Found(name, n, node.name) for n in node.body if isinstance(n, Function)}
                names[node.name] = inner.get("__init__", Found(name, None, node.name))
                classes.setdefault(node.name, {}).update(inner)
                protocols |= {node.name} & {node.name for b in node.bases if "Protocol" in ast.unparse(b)}
    return modules, classes, protocols


@cache
def _having(method: str) -> set[str]:
    return {one for one, methods in _code()[1].items() if method in methods}


def _meant(module: str, name: str) -> list[Found]:
    found = _code()[0].get(module, {}).get(name, "")
    if isinstance(found, Found):
        return [found]
    several = [one for one in found.split(",") if one and one != name]
    return _meant(*found.split(":")) if ":" in found else [f for one in several for f in _meant(module, one)]


class Walk(ast.NodeVisitor):
    """Follows the settings, and notes what was entered."""

    def __init__(self) -> None:
        self.files, self.folders, self.reentries, self.seen = [], [], [], set()
        self.found, self.folder, self.carried, self.types = None, "", set(), {}

    def enter(self, found: Found, carried: set[str]) -> None:
        """Walk through a function whose arguments `carried` hold the settings."""
        if found.node is None or not carried or found.node in self.seen:
            return
        before, folder = vars(self).copy(), "/".join(found.module.split(".")[:2])
        if folder != self.folder and folder in self.folders:
            self.reentries.append(f"{self.folder} -> {found.module}:{found.node.name}")
        self.folders += [folder] * (folder not in self.folders)
        self.files += [found.module] * (found.module not in self.files)
        self.seen.add(found.node)
        notes = [n for n in ast.walk(found.node) if getattr(n, "annotation", None)]
        self.types = {ast.unparse(n).partition(":")[0]: ast.unparse(n.annotation) for n in notes}
        self.found, self.folder, self.carried = found, folder, carried
        self.generic_visit(found.node)
        vars(self).update(before)

    def called(self, func: ast.AST) -> list[Found]:
        """Return what a called expression may be."""
        if isinstance(func, ast.Name):
            return _meant(self.found.module, self.types.get(f"{func.id}()", func.id))
        if not isinstance(func, ast.Attribute) or self.holds(func.value):
            return []
        _, classes, protocols = _code()
        receiver = ast.unparse(func.value).rpartition(".")[2]
        receiver = self.found.owner if receiver in {"self", "cls"} else self.types.get(receiver, receiver)
        name = re.sub(r"\W.*|_", "", receiver).lower()
        having = _having(func.attr)
        own = {o for o in having if o.lower() == name} or {o for o in having if o.lower().endswith(name)}
        own |= {o for p in own & protocols for o in having if classes[p].keys() <= classes[o].keys()}
        own = own or (having if len(having) == 1 else set())
        return [classes[one][func.attr] for one in sorted(own - protocols)]

    def holds(self, node: ast.AST) -> bool:
        """Whether a value is, or is made of, the settings as a whole."""
        match node:
            case ast.Name(id=name):
                return name in self.carried
            case ast.Attribute(value=value, attr=name):
                return name in ("spec", "played") and self.holds(value)
            case ast.Compare() | ast.JoinedStr() | ast.Subscript() | ast.UnaryOp():
                return False
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if self.holds(value):
                return attr in ITSELF
            case ast.Call(func=func):
                known = self.called(func)
                if not any(_gives(one) for one in known) if known else hasattr(builtins, ast.unparse(func)):
                    return False
        return any(map(self.holds, ast.iter_child_nodes(node)))

    def visit(self, node: ast.AST) -> None:
        """Note which names hold the settings, or a table's functions; enter what is called with them."""
        if isinstance(node, ast.For):  # Its name may be one of a table's functions.
            self.types[f"{ast.unparse(node.target)}()"] = ast.unparse(node.iter)
        self.generic_visit(node)
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                self.carried |= {ast.unparse(n) for n, v in zip(names, values, strict=False) if self.holds(v)}
            case ast.Assign() | ast.AnnAssign() | ast.NamedExpr() if node.value and self.holds(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self.carried |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            case ast.Call(args=args, keywords=named) if any(map(self.holds, [*args, *named])):
                for skipped, func in enumerate([node.func, *args]):  # One may be handed to the other.
                    for target in self.called(func) if not self.holds(func) else ():
                        names, rest = _parameters(target), target.node and target.node.args.kwarg
                        passed = {n for n, v in zip(names, args[skipped:], strict=False) if self.holds(v)}
                        given = {one.arg for one in named if self.holds(one)}
                        other = {rest.arg} if rest and given else set()
                        self.enter(target, passed | given & {*names} | other)


def walked(starts: tuple[str, ...]) -> list[list[str]]:
    """Return the files, folders and re-entries of the settings from some functions on."""
    walk = Walk()
    for start in starts:
        module, _, path = start.partition(":")
        owner, _, name = path.rpartition(".")
        found = _code()[1][owner][name] if owner else _meant(module, name)[0]
        walk.folder = ""
        walk.enter(found, CARRIERS & {*_parameters(found)})
    return [walk.files, walk.folders, walk.reentries]


def classes_asked() -> list[str]:
    """Return where the code asks for the class of a job's settings."""
    asked = re.compile(r"isinstance\([^()]*(?:\([^()]*\))?[^()]*, [^()]*\w(?<!Own)Spec\b")
    return [f"{path.name}: {one}" for path in PATHS for one in asked.findall(path.read_text("utf-8"))]


if __name__ == "__main__":
    for title, starts in WALKS.items():
        print(f"{title}:", *map(len, found := walked(starts)))
        if "-v" in sys.argv:
            print(*(f"  {line}" for lines in found for line in lines), sep="\n")
    print(f"isinstance on specs: {len(classes_asked())}")
