"""`--json`: the standard output is JSON, whatever an environment does with it."""

import json
import subprocess
import sys

LOUD = """
import atexit, ctypes, os, sys, tinkergym

def shout():
    print("by name")
    os.write(1, b"by descriptor\\n")
    ctypes.CDLL(None).puts(b"in C")
    saved.write("by a name of its own\\n")
    os.system("echo by a child")

saved = sys.stdout
shout()
atexit.register(shout)

class Env(tinkergym.SingleTurnEnv):
    def __init__(self): shout()
    def ask(self, options): shout(); return "x"
    def score(self, answer): shout(); return 1.0
    def gold_action(self): return "x"
"""


def test_sends_all_environment_output_to_stderr_at_any_time(tmp_path):
    (tmp_path / "loud.py").write_text(LOUD)
    ran = subprocess.run(
        [sys.executable, "-m", "tinkergym", "eval", "loud:Env", "--policy", "gold", "--tasks=2", "--json"],
        capture_output=True,
        cwd=tmp_path,
        text=True,
        timeout=60,
    )
    assert json.loads(ran.stdout)["episodes"] == 2
    assert ran.returncode == 0
    assert ran.stderr.count("by descriptor") >= 7
