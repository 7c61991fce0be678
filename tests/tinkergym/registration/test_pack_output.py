from tests.tinkergym.registration.installed import fresh


def test_prints_output_of_a_pack_on_stderr(install, tmp_path):
    install("tinkergym-loud", "loud/Env-v0 = MODULE:Env", games="loud/Nim-v0 = MODULE:Nim")
    code = """
import tinkergym
print("mine")
tinkergym.make("loud/Env-v0"); tinkergym.make_game("loud/Nim-v0")
print("mine too")
"""
    stdout, stderr = fresh(code, tmp_path)
    assert stdout.split("\n") == ["mine", "mine too", ""]
    assert "imported tinkergym_loud_module" in stderr
    assert "made" in stderr
