"""Wrappers around environments, one per file."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinkergym.games.against_opponent import AgainstOpponent
    from tinkergym.wrappers.extract_answer import ExtractAnswer
    from tinkergym.wrappers.illegal_action import IllegalAction
    from tinkergym.wrappers.record_transcript import RecordTranscript, read_transcripts
    from tinkergym.wrappers.reward_terms import RewardTerms
    from tinkergym.wrappers.strip_reasoning import StripReasoning
    from tinkergym.wrappers.system_prompt import SystemPrompt
    from tinkergym.wrappers.tool_calling import ToolCalling
    from tinkergym.wrappers.train_remotely import TrainRemotely
    from tinkergym.wrappers.turn_limit import TurnLimit
    from tinkergym.wrappers.verbalize import Verbalize
    from tinkergym.wrappers.wording import Wording

__all__ = [
    "AgainstOpponent",
    "ExtractAnswer",
    "IllegalAction",
    "RecordTranscript",
    "RewardTerms",
    "StripReasoning",
    "SystemPrompt",
    "ToolCalling",
    "TrainRemotely",
    "TurnLimit",
    "Verbalize",
    "Wording",
    "read_transcripts",
]

# Loaded on first use: `import tinkergym` must load neither httpx nor Gymnasium.
_HOMES = {
    "AgainstOpponent": "tinkergym.games.against_opponent",
    "ExtractAnswer": "tinkergym.wrappers.extract_answer",
    "IllegalAction": "tinkergym.wrappers.illegal_action",
    "RecordTranscript": "tinkergym.wrappers.record_transcript",
    "RewardTerms": "tinkergym.wrappers.reward_terms",
    "StripReasoning": "tinkergym.wrappers.strip_reasoning",
    "SystemPrompt": "tinkergym.wrappers.system_prompt",
    "ToolCalling": "tinkergym.wrappers.tool_calling",
    "TrainRemotely": "tinkergym.wrappers.train_remotely",
    "TurnLimit": "tinkergym.wrappers.turn_limit",
    "Verbalize": "tinkergym.wrappers.verbalize",
    "Wording": "tinkergym.wrappers.wording",
    "read_transcripts": "tinkergym.wrappers.record_transcript",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tinkergym.wrappers' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
