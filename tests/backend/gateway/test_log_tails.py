import pytest

from backend.gateway.log_tails import list_logs, tail, without_secrets
from tinkergym.errors import NotFoundError
from tinkergym.schema.operation import MOST_LOG_BYTES


def test_returns_last_lines_without_control_characters(tmp_path):
    (tmp_path / "gateway.log").write_text("".join(f"\x1b[31mline {at}\x1b[0m\r\n" for at in range(9)))
    found = tail(tmp_path, "gateway", 2)
    assert (found.text.split("\n"), found.begins_later) == (["line 7", "line 8", ""], True)
    assert not tail(tmp_path, "gateway", 9).begins_later


def test_reads_only_end_of_a_large_log(tmp_path):
    (tmp_path / "gateway.log").write_bytes(b"\xff" * 100 + b"x" * 3 * MOST_LOG_BYTES + b"\nlast\n")
    found = tail(tmp_path, "gateway", 2000)
    assert (found.text, found.begins_later) == ("last\n", True)


@pytest.mark.parametrize(
    "name", ["../local", "..", "", "/etc/passwd", "gateway.log", "link", "folder", "local\x00", "a/b", "none"]
)
def test_rejects_names_that_are_no_log(tmp_path, name):
    logs = tmp_path / "logs"
    (logs / "folder.log").mkdir(parents=True)
    (logs / "gateway.log").write_text("fine")
    (tmp_path / "local.log").write_text("tg-key")
    (logs / "link.log").symlink_to(tmp_path / "local.log")
    assert [one.name for one in list_logs(logs)] == ["gateway"]
    with pytest.raises(NotFoundError):
        tail(logs, name, 10)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("key tg-abcdefgh1234 used", "key <secret> used"),
        ("Authorization: Bearer abc.def-123456", "Authorization: <secret>"),
        ('{"api_key": "0123456789", "x": 1}', '{"api_key": "<secret>", "x": 1}'),
        ("HF_TOKEN=hf_abcdefghij", "HF_TOKEN=<secret>"),
        ("postgresql://user:pass@db/gym", "postgresql://user:<secret>@db/gym"),
        ("1,234 tokens per second, token 17", "1,234 tokens per second, token 17"),
    ],
)
def test_leaves_out_what_looks_like_a_secret(line, shown):
    assert without_secrets(line) == shown
