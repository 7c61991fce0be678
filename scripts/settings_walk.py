"""Count what a job's settings pass through: `python -m scripts.settings_walk`, with `-v` by name.

Reads the code and runs none of it. From a function on, it follows every call that is handed the settings, in
the order in which they are written, over all branches. The settings are the function's arguments, and values
made of them as a whole: a parsed model, a copy, a mapping. A single setting taken out of it is not followed,
and a question that the settings answer themselves (`spec.for_agent(...)`) is no passing on.

Counted are the files entered, the folders (`tinkergym/remote`), and the re-entries: calls from another folder
into one that was entered before. It also counts how often the code asks for the class of a spec.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(sys.argv[sys.argv.index("--root") + 1]) if "--root" in sys.argv else Path(__file__).parents[1]

WALKS = {
    "from client.train to the loop": [
        "tinkergym.remote.client:Client.train",
        # Over HTTP.
        "backend.gateway.routes_jobs:create_job",
        # Through the store.
        "backend.workers.pool_jobs:PoolJobs._loop",
    ],
    "inside Admission.check": ["backend.admission.check:Admission.check"],
}
IMPLEMENTATIONS = {
    "JobCheck": "backend.admission.preflight:Preflight",
    "ModelCatalog": "backend.admission.models:FileCatalog",
}
"""Of protocols, by their names."""


@dataclass
class Module:
    """A parsed module."""

    name: str
    path: Path
    tree: ast.Module
    imports: dict[str, str] = field(default_factory=dict)
    """Local names and what they mean: `module` or `module:name`."""
    defined: dict[str, ast.AST] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)
    """Names in constants that are tuples of names."""


@cache
def module(name: str) -> Module | None:
    """Return a module of this repository."""
    base = ROOT / name.replace(".", "/")
    path = next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)
    if path is None or name.split(".", maxsplit=1)[0] not in ("tinkergym", "backend"):
        return None
    found = Module(name, path, ast.parse(path.read_text(encoding="utf-8")))
    for node in ast.walk(found.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = (ROOT / inner.replace(".", "/")).with_suffix(".py").is_file()
                found.imports[alias.asname or alias.name] = (
                    inner if is_module else f"{node.module}:{alias.name}"
                )
    for node in found.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.defined[node.name] = node
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Tuple):  # type: ignore[union-attr]
            found.tables[target.id] = [one.id for one in node.value.elts if isinstance(one, ast.Name)]  # type: ignore[union-attr]
    return found


def resolve(where: str) -> tuple[Module, ast.AST] | None:
    """Return a definition by `module:Class.method`."""
    name, _, path = where.partition(":")
    home = module(name)
    if home is None:
        return None
    first, _, rest = path.partition(".")
    node = home.defined.get(first)
    if node is None:
        target = home.imports.get(first)
        return resolve(f"{target}.{rest}".rstrip(".")) if target and ":" in target else None
    if rest and isinstance(node, ast.ClassDef):
        return method(home, node, rest)
    return home, node


def method(home: Module, cls: ast.ClassDef, name: str) -> tuple[Module, ast.AST] | None:
    """Return a method of a class or of its bases."""
    for node in cls.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return home, node
    for base in cls.bases:
        named = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(named, ast.Name):
            found = meaning(home, named.id)
            known = resolve(found) if found else None
            if known and isinstance(known[1], ast.ClassDef) and (inner := method(known[0], known[1], name)):
                return inner
    return None


def meaning(home: Module, name: str) -> str | None:
    """Return `module:name` for a name of a module."""
    if name in home.defined:
        return f"{home.name}:{name}"
    return home.imports.get(name)


def class_of(home: Module, annotation: ast.AST | None) -> str | None:
    """Return the class that an annotation names, with protocols replaced by what implements them."""
    for node in ast.walk(annotation) if annotation is not None else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return class_of(home, ast.parse(node.value, mode="eval"))
        if isinstance(node, ast.Name):
            if node.id in IMPLEMENTATIONS:
                return IMPLEMENTATIONS[node.id]
            found = meaning(home, node.id)
            known = resolve(found) if found and ":" in found else None
            if known and isinstance(known[1], ast.ClassDef):
                return f"{known[0].name}:{known[1].name}"
    return None


def attribute_class(owner: str, name: str) -> str | None:
    """Return the class of an attribute: of a field, a property, or what `__init__` gives it."""
    known = resolve(owner)
    if known is None or not isinstance(known[1], ast.ClassDef):
        return None
    home, cls = known
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return class_of(home, node.annotation)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return class_of(home, node.returns)
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            types = {arg.arg: class_of(home, arg.annotation) for arg in every_argument(node)}
            for inner in ast.walk(node):
                if isinstance(inner, ast.Assign | ast.AnnAssign):
                    target = inner.targets[0] if isinstance(inner, ast.Assign) else inner.target
                    if isinstance(target, ast.Attribute) and target.attr == name:
                        return type_of(home, inner.value, types) or (
                            class_of(home, inner.annotation) if isinstance(inner, ast.AnnAssign) else None
                        )
    return None


def type_of(  # noqa: PLR0911 - one for each form
    home: Module, node: ast.AST | None, types: dict[str, str | None]
) -> str | None:
    """Return the class of an expression, if its annotations tell."""
    match node:
        case ast.Name(id=name):
            return types.get(name)
        case ast.Attribute(value=value, attr=name):
            owner = type_of(home, value, types)
            return attribute_class(owner, name) if owner else None
        case ast.Call(func=ast.Name(id=name)):
            found = meaning(home, name)
            known = resolve(found) if found and ":" in found else None
            if known and isinstance(known[1], ast.ClassDef):
                return f"{known[0].name}:{known[1].name}"
            return class_of(known[0], getattr(known[1], "returns", None)) if known else None
        case ast.BoolOp(values=[*_, last]):
            return type_of(home, last, types)
        case ast.Await(value=value):
            return type_of(home, value, types)
    return None


def is_settings(home: Module, function: ast.AST) -> bool:
    """Whether what a function returns may hold the settings: a spec, a mapping, a type variable, anything."""
    returns = getattr(function, "returns", None)
    if returns is None or getattr(function, "name", "") == "__init__":
        return True
    names = {node.id for node in ast.walk(returns) if isinstance(node, ast.Name)}
    return any(name in WORDS or name.endswith("Spec") or is_variable(home, name) for name in names)


WORDS = {"Any", "EnvironmentMix", "EnvironmentRef", "JobLease"}


def is_variable(home: Module, name: str) -> bool:
    """Whether a name is a type variable."""
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == name
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", "") == "TypeVar"
        for node in home.tree.body
    )


def every_argument(function: ast.AST) -> list[ast.arg]:
    """Return the parameters of a function."""
    given = function.args  # type: ignore[attr-defined] # of functions
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]


@dataclass
class Walk:
    """What was entered so far."""

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    reentries: list[str] = field(default_factory=list)
    seen: set[tuple[str, str]] = field(default_factory=set)

    def enter(
        self, home: Module, function: ast.AST, carried: set[str], caller: str = "", owner: str | None = None
    ) -> None:
        """Walk through a function whose arguments `carried` hold the settings."""
        folder = "/".join(home.name.split(".")[:2])
        name = f"{home.name}:{getattr(function, 'name', '')}"
        if folder != caller:
            if folder in self.folders:
                self.reentries.append(f"{caller} -> {name}")
            else:
                self.folders.append(folder)
        path = str(home.path.relative_to(ROOT))
        if path not in self.files:
            self.files.append(path)
        types = {arg.arg: class_of(home, arg.annotation) for arg in every_argument(function)}
        if owner is not None:
            types["self"] = owner
        Body(self, home, folder, types, set(carried)).visit_body(function)


class Body(ast.NodeVisitor):
    """Follows the settings through the body of one function."""

    def __init__(
        self, walk: Walk, home: Module, folder: str, types: dict[str, str | None], carried: set[str]
    ) -> None:
        self.walk, self.home, self.folder, self.types, self.carried = walk, home, folder, types, carried

    def visit_body(self, function: ast.AST) -> None:
        """Visit each statement."""
        for statement in function.body:  # type: ignore[attr-defined] # of functions
            self.visit(statement)

    def holds(self, node: ast.AST | None) -> bool:  # noqa: PLR0911 - one for each form
        """Whether a value is made of the settings as a whole."""
        match node:
            case ast.Name(id=name):
                return name in self.carried
            case ast.Starred(value=value) | ast.Await(value=value) | ast.keyword(value=value):
                return self.holds(value)
            case ast.Dict(keys=keys, values=values):
                return any(self.holds(v) for k, v in zip(keys, values, strict=True) if k is None)
            case ast.BinOp(left=left, right=right):
                return self.holds(left) or self.holds(right)
            case ast.IfExp(body=one, orelse=other):
                return self.holds(one) or self.holds(other)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return any(map(self.holds, parts))
            case ast.Attribute(value=value, attr="played"):
                return self.holds(value)
            case ast.Lambda(body=body):
                return self.holds(body)
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if self.holds(value):
                return name in {"model_copy", "with_environments", "seated", "for_agent", "job"}
            case ast.Call(func=func, args=args, keywords=named):
                gives = not (
                    isinstance(func, ast.Name)
                    and func.id in {"isinstance", "len", "str", "repr", "type", "any", "list", "getattr"}
                )
                if not gives or not any(map(self.holds, [*args, *named])):
                    return False
                found = self.target(func)
                return found is None or is_settings(found[0], found[1])
        return False

    def note(self, target: ast.AST, value: ast.AST | None) -> None:
        """Note the settings and the types that an assignment gives to names."""
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, part in zip(target.elts, value.elts, strict=True):
                self.note(one, part)
            return
        names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
        if self.holds(value):
            self.carried.update(names)
        if isinstance(target, ast.Name) and (known := type_of(self.home, value, self.types)):
            self.types[target.id] = known

    def visit_Assign(self, node: ast.Assign) -> None:
        """Note what names hold."""
        self.visit(node.value)
        for target in node.targets:
            self.note(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Note what a name holds."""
        if node.value is not None:
            self.visit(node.value)
            self.note(node.target, node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Note what a name holds."""
        self.visit(node.value)
        self.note(node.target, node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        """Note what a name holds."""
        self.visit(node.value)
        self.note(node.target, node.value)

    def visit_For(self, node: ast.For) -> None:
        """Visit a loop, once for each function of a table such as `CHECKS`."""
        table = self.home.tables.get(getattr(node.iter, "id", ""), [])
        for name in table:
            self.home.imports, before = (
                {**self.home.imports, node.target.id: meaning(self.home, name) or ""},
                self.home.imports,
            )  # type: ignore[attr-defined] # a name
            for statement in node.body:
                self.visit(statement)
            self.home.imports = before
        if not table:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Enter the function of a call that is handed the settings."""
        self.generic_visit(node)
        given = [*node.args, *node.keywords]
        if not any(map(self.holds, given)):
            return
        func, skipped = node.func, 0
        # `threads.run(tenant, partial(check, spec))` and `in_thread(check, spec)` call their argument.
        for number, argument in enumerate(node.args):
            is_function = isinstance(argument, ast.Attribute | ast.Name) and self.target(argument)
            runs = number == 0 or getattr(func, "id", getattr(func, "attr", "")) in {"run", "aside"}
            if is_function and runs and not self.holds(argument):
                func, skipped = argument, number + 1
                break
        found = self.target(func)
        if found is not None:
            self.follow(*found, node.args[skipped:], node.keywords)

    def target(self, func: ast.AST) -> tuple[Module, ast.AST, str | None] | None:
        """Return the function that a call enters, and the class whose method it is."""
        match func:
            case ast.Name(id=name):
                place = meaning(self.home, name)
                known = resolve(place) if place and ":" in place else None
                if known and isinstance(known[1], ast.ClassDef):
                    made = method(*known, "__init__")
                    return (*made, f"{known[0].name}:{known[1].name}") if made else None
                return (*known, None) if known else None
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if ":" not in (
                self.home.imports.get(name) or ":"
            ):
                known = resolve(f"{self.home.imports[name]}:{attr}")
                return (*known, None) if known and not isinstance(known[1], ast.ClassDef) else None
            case ast.Attribute(value=value, attr=attr):
                owner = type_of(self.home, value, self.types)
                if owner is None or self.holds(value):
                    return None
                known = resolve(owner)
                inner = method(*known, attr) if known and isinstance(known[1], ast.ClassDef) else None
                return (*inner, owner) if inner else None
        return None

    def follow(
        self,
        home: Module,
        function: ast.AST,
        owner: str | None,
        args: list[ast.expr],
        named: list[ast.keyword],
    ) -> None:
        """Enter a function with those of its parameters that are given the settings."""
        parameters = [arg.arg for arg in every_argument(function)]
        if parameters[:1] in (["self"], ["cls"]):
            parameters = parameters[1:]
        carried = {name for name, value in zip(parameters, args, strict=False) if self.holds(value)}
        carried |= {one.arg for one in named if one.arg and self.holds(one)}
        if any(one.arg is None and self.holds(one) for one in named):
            carried |= {arg.arg for arg in [function.args.kwarg] if arg}  # type: ignore[attr-defined] # of functions
        key = (home.name, getattr(function, "name", "") + (owner or ""))
        if carried and key not in self.walk.seen:
            self.walk.seen.add(key)
            self.walk.enter(home, function, carried, self.folder, owner)


def walked(starts: list[str]) -> Walk:
    """Return what the settings pass through from some functions on."""
    walk = Walk()
    for start in starts:
        known = resolve(start)
        assert known, f"{start} does not exist"
        home, function = known
        owner = start.rpartition(".")[0] if "." in start.partition(":")[2] else None
        carried = {arg.arg for arg in every_argument(function) if arg.arg in CARRIERS}
        walk.enter(home, function, carried, "", owner)
    return walk


CARRIERS = {"env", "settings", "env_kwargs", "body", "spec", "lease", "adapter", "algorithm", "environment"}
"""Arguments of the first functions that hold the settings."""


def classes_asked() -> list[str]:
    """Return where the code asks for the class of a job's settings, as `file:line`."""
    found = []
    for package in ("tinkergym", "backend"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.Call(func=ast.Name(id="isinstance"), args=[_, classes]):
                        names = {one.id for one in ast.walk(classes) if isinstance(one, ast.Name)}
                        if names & SPECS:
                            found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


SPECS = {
    *("TrainingSpec", "EvaluatedSpec", "PlayedSpec", "DatasetSpec"),
    *("RLSpec", "SFTSpec", "PreferenceSpec", "DistillationSpec", "PolicySpec"),
}


def main() -> None:
    """Print the counts."""
    for title, starts in WALKS.items():
        walk = walked(starts)
        print(f"{title}: {counts(walk)}")
        if "-v" in sys.argv:
            print(*(f"  {line}" for line in [*walk.files, *walk.reentries]), sep="\n")
    asked = classes_asked()
    print(f"isinstance on specs: {len(asked)}")
    if "-v" in sys.argv:
        print(*(f"  {line}" for line in asked), sep="\n")


def counts(walk: Walk) -> tuple[int, int, int]:
    """Return a walk's files, folders and re-entries."""
    return len(walk.files), len(walk.folders), len(walk.reentries)


if __name__ == "__main__":
    main()
