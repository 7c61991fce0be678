import threading

import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.remote.import_guard import imported, refuse_while_imported


def test_starts_no_job_while_a_command_imports_a_module():
    refuse_while_imported()
    with pytest.raises(KeyError), imported("script"):
        with pytest.raises(InvalidRequestError) as caught:
            refuse_while_imported()
        assert caught.value.field == "ENV"
        # Other threads import nothing.
        free = threading.Thread(target=refuse_while_imported)
        free.start()
        free.join()
        raise KeyError
    refuse_while_imported()
