from pathlib import Path

import pytest

from backend.admission.offered_models import FileCatalog
from backend.catalog.limited_reads import LimitedReads
from backend.catalog.models import load_renderer_bundle, read_model_facts
from backend.config import ServiceConfig
from backend.processes.limited_child import ChildLimits
from backend.settings.served_models import PACKAGED_MODELS
from benchmarks.hostile_templates import COMPILED, TEMPLATES
from tinkergym.errors import TemplateError, UnknownModelError

NANO = Path(PACKAGED_MODELS["nano"])
LATER = (
    "{% for m in messages %}{{ m.content }}{% if loop.index > 9 %}{{ 'a' * 9999999 }}{% endif %}{% endfor %}"
)


@pytest.fixture
def reads():
    found = LimitedReads(ChildLimits(cpu_seconds=1, memory_bytes=2**29, wall_seconds=600))
    yield found
    found.close()


def test_refuses_costly_templates_of_jobs_for_good(tmp_path, reads, monkeypatch):
    catalog = FileCatalog(ServiceConfig(data_dir=tmp_path), reads)
    templates = [TEMPLATES["wordcount"], LATER, COMPILED["names"]]
    for _ in range(2):
        for template in templates:
            with pytest.raises(TemplateError) as refused:
                catalog.renderer("nano", template)
            assert refused.value.field == "chat_template"
            refused.value.field = "agents.white"  # Callers name the seat.
        monkeypatch.setattr(reads, "probe", None)  # Asked again, it would raise another error.


def test_reads_in_child_what_the_process_itself_would(reads, tmp_path):
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    expected = load_renderer_bundle("nano", NANO, template)
    assert reads.renderer("nano", NANO, template) == expected
    assert load_renderer_bundle("nano", NANO, template, probe=reads.probe) == expected
    assert reads.facts(NANO) == read_model_facts(NANO)
    reads.refuse_unfit("nano", NANO)
    broken = tmp_path / "config.json"
    broken.write_text("[]")
    with pytest.raises(UnknownModelError):
        reads.facts(tmp_path)
