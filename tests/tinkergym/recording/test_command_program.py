"""Commands in any language as agent programs."""

import sys

import pytest

from tests.tinkergym.recording.sessions import played
from tinkergym.recording.command_program import CommandProgram
from tinkergym.trajectory.trajectory import StopReason

SCRIPT = """
import json, os, subprocess, sys, urllib.request
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": os.environ["TINKERGYM_TASK"]}]})
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
key = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
urllib.request.urlopen(urllib.request.Request(url, body.encode(), key)).read()
print("done")

def post(reward):
    body = json.dumps(reward).encode()
    urllib.request.urlopen(urllib.request.Request(os.environ["TINKERGYM_REWARD_URL"], body, key)).read()

def leave_a_child_behind():
    sys.stdout.flush()
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

"""


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("print(0.5)", StopReason.TERMINATED),
        ("print('null')", StopReason.ABANDONED),
        ("post(0.5)", StopReason.TERMINATED),
        ("post(None)", StopReason.ABANDONED),
        ("print(0.5); leave_a_child_behind()", StopReason.TERMINATED),
        ("", StopReason.INVALID_REWARD),
        ("sys.exit(3)", StopReason.ENVIRONMENT_ERROR),
        ("os.kill(os.getpid(), 9)", StopReason.ENVIRONMENT_ERROR),
    ],
)
def test_reads_the_reward_from_last_line_of_a_command(ending, reason):
    record = played(CommandProgram([sys.executable, "-c", SCRIPT + ending]), tasks=["Say hi"])["agent"]
    assert record.stop_reason is reason, record.error
    assert [turn.observation for turn in record.turns] == ["Say hi"]
