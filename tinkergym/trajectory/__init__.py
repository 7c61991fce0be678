"""Typed parts, trajectories and the append-only ledger of their tokens: pure data."""
