import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.remote.import_guard import import_for_definitions, refuse_while_imported

SCRIPT = """
import threading

from tinkergym.remote.import_guard import refuse_while_imported

# Other threads import nothing.
free = threading.Thread(target=refuse_while_imported)
free.start()
free.join()
refuse_while_imported()
"""


def test_starts_no_job_while_a_command_imports_a_module(tmp_path, monkeypatch):
    (tmp_path / "starts_a_job.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(tmp_path)
    refuse_while_imported()
    with pytest.raises(InvalidRequestError) as caught:
        import_for_definitions("starts_a_job")
    assert caught.value.field == "ENV"
    refuse_while_imported()
