def test_shows_state_of_service_and_what_models_take(tg_run, start_service):
    start_service()
    first, *models = tg_run("status").stdout.splitlines()
    assert first.startswith("http://127.0.0.1:")
    assert ": ok, tinkergym " in first
    assert any("0.60 GB  nano" in line for line in models)
