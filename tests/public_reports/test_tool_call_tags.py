"""A literal closing tag in an argument drops the call; calls without arguments are lost.

https://github.com/vllm-project/vllm/issues/45167, https://github.com/vllm-project/vllm/issues/28806
"""

import pytest

import tinkergym as tg
from tinkergym.wrappers import ToolCalling


@tg.tool
def save(text: str = "") -> str:
    """Save a text."""
    return f"saved {text}"


class Note(tg.SingleTurnEnv):
    def ask(self, options):
        return "Save a note."

    def score(self, answer):
        return 0.0


def call(arguments):
    return f'<tool_call>\n{{"name": "save", "arguments": {arguments}}}\n</tool_call>'


def counts(answer):
    env = ToolCalling(Note(), tools=[save])
    env.reset(seed=1)
    _, _, terminated, _, info = env.step(answer)
    return info["metrics"]["tool_calls"], info["metrics"]["malformed_tool_calls"], terminated


@pytest.mark.parametrize(
    "answer",
    [
        call('{"text": "end it with </tool_call>"}'),
        call('{"text": "close with </think> first"}'),
        "<think>hm</think>\n" + call('{"text": "close with </think> first"}'),
        call('{"text": "one\ntwo"}'),
        '<tool_call>\n{"name": "save"}\n</tool_call>',
        call("null"),
    ],
)
def test_runs_call_with_tags_or_without_arguments(answer):
    assert counts(answer) == (1, 0, False)


@pytest.mark.parametrize("answer", [call('{"text": "</think>" oops}'), call('{"text": "cut </think> here')])
def test_counts_unreadable_call_instead_of_scoring_answer(answer):
    assert counts(answer) == (0, 1, False)
