"""Template variables of rows: read, rendered, and replaced by those of the job."""

import json

import pytest

from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.conversations import RowFaultError
from tinkergym.datasets.prepare import row_reader
from tinkergym.errors import TemplateError
from tinkergym.testing import byte_bundle
from tinkergym.testing.bundles import CHATML

TEMPLATE = "{{ effort | default('medium') }} {{ more }}|" + CHATML
MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]


def shown(row, **job):
    renderer = Renderer.from_bundle(byte_bundle(chat_template=TEMPLATE).with_settings(job, ""))
    sequences, _ = row_reader("sft", renderer, "all")({"messages": MESSAGES, **row})
    return renderer.decode(sequences[0].token_ids).partition("|")[0]


@pytest.mark.parametrize("name", ["template_variables", "chat_template_kwargs"])
def test_renders_rows_with_their_variables_unless_job_sets_them(name):
    assert shown({}) == shown({name: None}) == shown({name: {"effort": None}}) == "medium "
    assert shown({name: {"effort": "low"}}) == shown({name: json.dumps({"effort": "low"})}) == "low "
    assert shown({name: {"effort": "low", "more": "so"}}, effort="high") == "high so"


def test_renders_rows_with_the_date_of_their_own():
    dated = byte_bundle(chat_template="{{ strftime_now('%d %b %Y') }}|" + CHATML).with_settings(
        {}, "2026-01-02"
    )
    renderer = Renderer.from_bundle(dated)
    read = row_reader("sft", renderer, "all")
    days = [
        renderer.decode(read({"messages": MESSAGES, **row})[0][0].token_ids).partition("|")[0]
        for row in ({}, {"template_date": None}, {"template_date": "2025-12-31"})
    ]
    assert days == ["02 Jan 2026", "02 Jan 2026", "31 Dec 2025"]


@pytest.mark.parametrize(
    "row",
    [
        {"template_variables": ["effort"]},
        {"template_variables": "{"},
        {"template_variables": {"messages": []}},
        {"chat_template_kwargs": {"efort": 1}},
        {"text": "a text", "template_variables": {"effort": "low"}},
        {"text": "a text", "template_date": "2026-11-29"},
        {"template_date": "yesterday"},
        {"template_date": "2025-12-31"},  # this template writes none
    ],
)
def test_refuses_what_has_no_effect(row):
    with pytest.raises((RowFaultError, TemplateError)):
        shown(row)
