from pathlib import Path

import pytest

from backend.gateway.log_tails import known_secrets, list_logs, tail, without_secrets
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


@pytest.mark.parametrize("end", ["", "\n"])
def test_shows_part_of_a_line_longer_than_all(tmp_path, end):
    (tmp_path / "gateway.log").write_text("x" * 3 * MOST_LOG_BYTES + end)
    assert 4000 < len(tail(tmp_path, "gateway", 200).text) < 4100


def test_cuts_a_long_line_and_says_so():
    first, second = without_secrets(f"{'token-' * 40_000}\nshort").split("\n")
    assert (len(first) < 4100, "240000" in first, second) == (True, True, "short")


def test_lists_logs_while_another_is_deleted(tmp_path):
    class Folder(type(Path())):
        def glob(self, _):
            return [self / "gateway.log", self / "gone.log"]

    (tmp_path / "gateway.log").write_text("fine")
    assert [one.name for one in list_logs(Folder(tmp_path))] == ["gateway"]


def test_says_that_a_log_is_gone_if_deleted_meanwhile(tmp_path):
    class Listed(type(Path())):
        def glob(self, _):
            return [self / "gateway.log"]

        def lstat(self):
            about = super().lstat()
            self.unlink()
            return about

    (tmp_path / "gateway.log").write_text("fine")
    with pytest.raises(NotFoundError):
        tail(Listed(tmp_path), "gateway", 9)


def test_leaves_out_the_services_own_secrets():
    known = known_secrets(
        "postgresql://gym:a%20long%20one@db/x", {"MY_SECRET": "abcdef-1", "HOME": "/home/x"}
    )
    assert known == ["a%20long%20one", "a long one", "abcdef-1"]
    assert without_secrets("got abcdef-1 of a long one", known) == "got <secret> of <secret>"


def test_leaves_out_private_keys_even_without_their_ends():
    body = "\n".join(["MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"] * 3)
    begin, end = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
    assert without_secrets(f"a\n{begin}\n{body}\n{end}\nb") == "a\n<secret>\nb"
    assert without_secrets(f"a\n{begin}\n{body}\nb") == "a\n<secret>\nb"
    assert without_secrets(f"{body}\n{end}\nb") == "<secret>\nb"


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
        ("postgresql://u:p/w123456@host", "postgresql://u:<secret>@host"),
        ("AWS_SECRET_ACCESS_KEY=abcd/efgh+123", "AWS_SECRET_ACCESS_KEY=<secret>"),
        ("client_secret_key = abcdefgh", "client_secret_key = <secret>"),
        ("id AKIAABCDEFGHIJKLMNOP", "id <secret>"),
        ("github_pat_11ABCDEFG0abc gho_abcdefgh12", "<secret> <secret>"),
        ("got eyJhbGciOiJIUzI1.eyJzdWIiOiIx.c2ln-bmF0", "got <secret>"),
        ("https://s3/x?X-Amz-Signature=0123456789abcdef", "https://s3/x?X-Amz-Signature=<secret>"),
        ("tinkergym_session=abcdefgh; b", "tinkergym_session=<secret>; b"),
        ("Cookie: a=b; c=d", "Cookie: <secret>"),
        ("password='ab,cdefghi' x", "password='<secret>' x"),
        (r'"{\"api_key\": \"abcdefgh\"}"', r'"{\"api_key\": \"<secret>"}"'),
        ("tokens: 1234567, tokenizer=Qwen/Qwen3", "tokens: 1234567, tokenizer=Qwen/Qwen3"),
        ("1,234 tokens per second, token 17", "1,234 tokens per second, token 17"),
    ],
)
def test_leaves_out_what_looks_like_a_secret(line, shown):
    assert without_secrets(line) == shown
