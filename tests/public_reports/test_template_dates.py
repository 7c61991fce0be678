"""Templates write today's date, so that prompts depend on the clock.

https://github.com/sgl-project/sglang/issues/3296,
https://github.com/huggingface/text-generation-inference/issues/2987,
https://github.com/unslothai/unsloth/issues/881
"""

import pytest

from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError
from tinkergym.messages import user
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.parsing import parse
from tinkergym.testing import byte_bundle

TEMPLATE = (
    "Today is {{ strftime_now('%d %b %Y, %H:%M') }}\n"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def renderer(day):
    return Renderer.from_bundle(byte_bundle(chat_template=TEMPLATE).with_settings({}, day))


def dates(shown):
    prompts = [shown.start([user("hi " * times)]) for times in (1, 150)]  # The first one is remembered.
    return [shown.decode(ids).partition("\n")[0] for ids in prompts]


def test_writes_the_jobs_date_on_any_day():
    assert dates(renderer("2026-03-01")) == ["Today is 01 Mar 2026, 00:00"] * 2
    assert dates(renderer("2024-02-29")) == ["Today is 29 Feb 2024, 00:00"] * 2


def test_writes_one_date_for_as_long_as_it_lives():
    first, second = dates(renderer(""))
    assert first == second
    assert first.endswith("00:00")


@pytest.mark.parametrize("day", ["tomorrow", "2026-13-01", "20260301", "2026-03-01T00:00", " 2026-03-01"])
def test_refuses_what_is_no_date(day):
    with pytest.raises(InvalidRequestError) as refused:
        parse(RLSpec, {"environment": {"id": "a/B-v0"}, "steps": 1, "template_date": day})
    assert refused.value.field == "template_date"
