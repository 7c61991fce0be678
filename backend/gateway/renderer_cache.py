"""Renderers of models and jobs, kept between requests: to build one reads a whole tokenizer."""

from __future__ import annotations

import threading
from datetime import date

from tinkergym.agent.renderer import Renderer
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.schema.views import RendererBundle

_KEPT = 16
"""Each has a tokenizer, of up to some ten megabytes."""


class RendererCache:
    """The renderers used last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: BoundedDict[tuple[str, str, date], Renderer] = BoundedDict(_KEPT)

    def of(self, bundle: RendererBundle) -> Renderer:
        """Return the renderer of a bundle; blocks while it is built.

        Raises:
            TemplateError: Its template does not work.
        """
        # A template may write the date of the day on which its renderer was built.
        key = bundle.sha256, bundle.template_sha256, date.today()
        with self._lock:
            if (known := self._kept.get(key)) is not None:
                return known
        built = Renderer.from_bundle(bundle)
        with self._lock:
            return self._kept.setdefault(key, built)
