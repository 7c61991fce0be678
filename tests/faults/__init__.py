"""Slips that could be made, each with the tests that must then fail.

`tests/faults/<area>.toml` holds one entry per fault: an `id`, `what` is wrong, the `file`, the `old` text,
which occurs in it exactly once, the `new` text, and the `tests`, of which at least one must fail. `python -m
tests.faults` makes each slip in a copy of the tree and runs its tests there.
"""
