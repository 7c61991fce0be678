"""Tests hand in what they need; few replace the insides of what they test."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_PER_100 = 4
"""Uses of `monkeypatch.setattr` per 100 test functions."""


def test_replaces_few_insides():
    texts = [
        path.read_text("utf-8")
        for path in (*ROOT.glob("tests/**/*.py"), *ROOT.glob("envs/*/tests/**/*.py"))
        if path != Path(__file__)
    ]
    patches, tests = (
        sum(text.count(word) for text in texts) for word in ("monkeypatch.setattr", "def test_")
    )
    assert patches <= MOST_PER_100 * tests / 100
