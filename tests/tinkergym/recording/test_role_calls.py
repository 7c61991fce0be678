"""Calls with tools, as the model's own template shows them."""

import json
from pathlib import Path

from tests.tinkergym.recording.sessions import plan_of, played, said, user
from tinkergym.agent.renderer import Renderer
from tinkergym.testing.bundles import byte_bundle
from tinkergym.testing.samplers import ScriptedSampler
from tinkergym.trajectory.trajectory import StopReason

NANO_TEMPLATE = Path("backend/models/nano-instruct/chat_template.jinja").read_text()


def test_offers_tools_and_reads_calls():
    nano_renderer = Renderer.from_bundle(byte_bundle(chat_template=NANO_TEMPLATE, context_length=4096))
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    texts = iter([call, "2"])
    sampler = ScriptedSampler(nano_renderer, lambda prompt: next(texts))
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]

    def add(session):
        answer = said(session, user("1+1"), tools=tools)
        (made,) = answer["tool_calls"]
        assert json.loads(made["function"]["arguments"]) == {"a": 1}
        result = {"role": "tool", "tool_call_id": made["id"], "content": "2"}
        said(session, user("1+1"), answer, result, tools=tools)
        return 1.0

    plan = plan_of(max_turn_tokens=200)
    record = played(add, plan, sampler=sampler, renderer=nano_renderer)["agent"]
    assert (record.stop_reason, len(record.segments)) == (StopReason.TERMINATED, 1), record.error
