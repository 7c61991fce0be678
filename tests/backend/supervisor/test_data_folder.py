from backend.config import ServiceConfig
from backend.errors import SERVICE_LOG
from backend.supervisor.data_folder import log_file


def test_what_errors_call_the_services_log_is_where_the_scheduler_writes_it(tmp_path):
    config = ServiceConfig(data_dir=tmp_path)
    config.log_dir.mkdir()
    there = log_file(config, "scheduler").relative_to(config.data_dir)
    assert SERVICE_LOG.startswith(f"{there} ")
