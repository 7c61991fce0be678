import pytest

from tinkergym.schema.chat_templates import PLAIN, template_text
from tinkergym.schema.refusals import Refusal


def test_accepts_template_by_its_text_or_by_name():
    assert template_text("plain") == PLAIN
    assert template_text("{{ messages }}") == "{{ messages }}"
    assert template_text("") == ""


@pytest.mark.parametrize("given", ["chatml", "template.jinja", "user: hello"])
def test_rejects_what_is_neither_template_text_nor_name(given):
    refusal = template_text(given)
    assert isinstance(refusal, Refusal)
    assert (refusal.field, refusal.code) == ("chat_template", "not_a_template")
