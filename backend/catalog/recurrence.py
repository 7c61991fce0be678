"""Which models keep state from token to token outside attention: Mamba, linear attention, RWKV.

For learner and transformers engine, which both put several sequences into one row: attention can be told
where a sequence begins, but such a state cannot.
"""

from __future__ import annotations

from typing import Any

_KINDS = frozenset({"linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba", "recurrent"})
"""transformers' names for layers with such a state."""


def keeps_a_state(model: Any) -> bool:
    """Whether a transformers model has such layers; checked by name, because a short test may not show it."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    return bool(_KINDS.intersection(kinds)) or any(
        getattr(module, "_is_stateful", False) for module in model.modules()
    )
