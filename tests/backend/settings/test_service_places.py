import os

from backend.config import load_config


def test_follows_tinkergym_home_for_the_data_folder_everywhere_alike(monkeypatch, tmp_path):
    monkeypatch.setenv("TINKERGYM_HOME", str(tmp_path / "home"))
    assert load_config().local_file == tmp_path / "home" / "local.json"
    monkeypatch.chdir(tmp_path)
    assert load_config(None, ["data_dir=here"]).data_dir == tmp_path / "here"


def test_fits_socket_into_run_folder_however_long_data_folder_is(tmp_path):
    deep = tmp_path / ("long" * 40)
    config = load_config(None, [f"data_dir={deep}"])
    for socket in ("p" * 36 + ".sk", "ray/session_2026-11-23_23-56-26_780733_4194304/sockets/plasma_store"):
        assert len(os.fsencode(config.run_dir / socket)) <= 107
    assert config.run_dir == load_config(None, [f"data_dir={deep}"]).run_dir
    assert config.run_dir != load_config(None, [f"data_dir={deep}2"]).run_dir
