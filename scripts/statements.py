"""The statements of a file. To walk over its expressions too, ten times as many nodes, takes seconds."""

import ast
from collections.abc import Iterator

_WITH_STATEMENTS = ast.stmt | ast.ExceptHandler | ast.match_case


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below a node, those inside others too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _WITH_STATEMENTS):
            yield node
            yield from statements(node)
