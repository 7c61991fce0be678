from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.engines.transformers.engine import TransformersEngine


@pytest.fixture
def start() -> Iterator[Callable[..., TransformersEngine]]:
    engines = []

    def make(directory: Path, **options: Any) -> TransformersEngine:
        engines.append(TransformersEngine(directory, **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
