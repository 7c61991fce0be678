"""Template variables of a submitted job, and the date that its template writes."""

from datetime import date

import pytest

from backend.admission.model_inputs import template_is_settled
from backend.testing.scripted_catalog import ScriptedCatalog
from tests.backend.admission.packs import admit, facts, spec
from tinkergym.errors import TemplateError, TinkerGymError
from tinkergym.schema.jobs.seats import Train
from tinkergym.testing import byte_bundle
from tinkergym.testing.bundles import CHATML

DATED = "{{ strftime_now('%Y') }}{% if effort %}{{ effort }}{% endif %}" + CHATML


def settled(template=DATED, **changes):
    catalog = ScriptedCatalog(byte_bundle, lambda model: None)
    job = spec(model="nano").model_copy(update={"chat_template": template, **changes})
    return admit(template_is_settled, job, facts(None, catalog))


def test_records_the_day_of_submission_where_template_writes_it():
    job = settled()
    assert job.template_date == date.today().isoformat()
    assert settled(template_date="2026-03-01").template_date == "2026-03-01"
    assert settled(CHATML).template_date == ""


def test_names_template_by_hash_of_all_settings():
    kinds = [
        {"template_date": "2026-03-01"},
        {"template_date": "2026-03-02"},
        {"template_date": "2026-03-01", "template_variables": {"effort": "low"}},
        {"template": CHATML},
    ]
    assert len({settled(**kind).template_sha256 for kind in kinds}) == 4
    assert settled(**kinds[0]).template_sha256 == settled(**kinds[0]).template_sha256


@pytest.mark.parametrize(
    ("changes", "field", "code"),
    [
        ({"template_variables": {"efort": 1}}, "template_variables", "unknown_template_variable"),
        ({"template": CHATML, "template_date": "2026-03-01"}, "template_date", "no_date"),
    ],
)
def test_refuses_settings_that_template_does_not_use(changes, field, code):
    with pytest.raises(TinkerGymError) as refused:
        settled(**changes)
    assert (refused.value.field, refused.value.code) == (field, code)


def test_refuses_to_train_on_with_another_template():
    job = settled(template_variables={"effort": "low"}, template_date="2026-03-01")
    own = byte_bundle(chat_template=DATED)
    assert job.rendered(own).template_variables == {"effort": "low"}
    with pytest.raises(TemplateError) as refused:
        job.rendered(byte_bundle())
    assert refused.value.code == "template_changed"


class _TwoModels(ScriptedCatalog):
    """The model `effortless` has a template without variables."""

    def renderer(self, model, chat_template=""):
        return super().renderer("nano", CHATML if model == "effortless" else DATED)


def test_checks_variables_of_every_seat_with_its_own_model():
    def admitted(**other):
        seats = {"x": Train(), "o": Train(model="effortless", **other)}
        own = {"agents": seats, "template_variables": {"effort": "low"}}
        job = spec(model="nano").model_copy(update=own)
        return admit(template_is_settled, job, facts(None, _TwoModels(byte_bundle, lambda model: None)))

    job = admitted(template_variables={})
    assert job.template_date == date.today().isoformat()
    assert job.for_agent("o").rendered(byte_bundle(chat_template=CHATML)).template_variables == {}
    with pytest.raises(TemplateError) as refused:
        admitted()
    assert refused.value.code == "unknown_template_variable"
