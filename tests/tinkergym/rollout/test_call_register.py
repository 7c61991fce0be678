from tinkergym.rollout.call_register import CallRegister, episodes_in_calls


def test_names_in_file_the_episodes_in_a_call(tmp_path):
    path = tmp_path / "calls"
    assert episodes_in_calls(path) == []
    register = CallRegister(path)
    with register.during("job:1:0"), register.during("job:1:1"):
        assert sorted(episodes_in_calls(path)) == ["job:1:0", "job:1:1"]
    assert episodes_in_calls(path) == []


def test_cuts_too_long_name_and_reuses_place_for_many_calls(tmp_path):
    path = tmp_path / "calls"
    register = CallRegister(path)
    for number in range(3000):
        with register.during(f"{number}:" + "x" * 500):
            if number % 500 == 499:
                (name,) = episodes_in_calls(path)
                assert name.startswith(f"{number}:x")
