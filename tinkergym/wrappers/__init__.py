"""Wrappers around environments, one per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinkergym.basics.extras import late_names

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

__getattr__ = late_names(
    __name__,
    {
        "extract_answer": "ExtractAnswer",
        "illegal_action": "IllegalAction",
        "record_transcript": "RecordTranscript read_transcripts",
        "reward_terms": "RewardTerms",
        "strip_reasoning": "StripReasoning",
        "system_prompt": "SystemPrompt",
        "tinkergym.games.against_opponent": "AgainstOpponent",
        "tool_calling": "ToolCalling",
        "train_remotely": "TrainRemotely",
        "turn_limit": "TurnLimit",
        "verbalize": "Verbalize",
        "wording": "Wording",
    },
)
