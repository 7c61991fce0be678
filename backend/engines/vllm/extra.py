"""Whether vLLM is installed; only `engine=vllm` needs it."""

from __future__ import annotations

from importlib.util import find_spec

from tinkergym.errors import MissingExtraError


def require_vllm() -> None:
    """Raise MissingExtraError if vLLM is not installed. The check does not import it."""
    if find_spec("vllm") is None:
        raise MissingExtraError(
            "engine=vllm needs vLLM, which is not installed",
            hint="make vllm (scripts/install_vllm.sh) on Linux x86-64, or set engine=transformers",
            field="engine",
        )
