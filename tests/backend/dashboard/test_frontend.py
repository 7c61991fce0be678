import pytest
from pydantic import ValidationError

from backend.config import ServiceConfig
from backend.dashboard.frontend import Frontend


def test_replaces_the_pages_by_those_of_a_folder(tmp_path):
    (tmp_path / "static" / "parts").mkdir(parents=True)
    (tmp_path / "index.html").write_text("<p>{{ page }}</p>")
    (tmp_path / "static" / "parts" / "own.js").write_text("1;")
    config = ServiceConfig(data_dir=tmp_path / "data", dashboard={"frontend": tmp_path})
    own = Frontend.read(config.dashboard.frontend)
    assert own.page.render(page="<b>") == "<p>&lt;b&gt;</p>"
    assert own.files["parts/own.js"].body == b"1;"


def test_refuses_a_folder_without_a_page(tmp_path):
    with pytest.raises(ValidationError) as refused:
        ServiceConfig(data_dir=tmp_path, dashboard={"frontend": tmp_path})
    (error,) = refused.value.errors()
    assert error["ctx"]["refusal"].field == "frontend"
