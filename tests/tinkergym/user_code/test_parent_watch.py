import subprocess
import sys

WORKER = """
import time
from tinkergym.user_code.parent_watch import end_with_parent
end_with_parent()
print(flush=True)
time.sleep(600)
"""
PARENT = f"""
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {WORKER!r}], stdout=subprocess.PIPE)
child.stdout.readline()
os._exit(0)
"""


def test_ends_process_after_its_parent():
    # The worker inherits stderr, which is at its end only when the worker has ended too.
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stderr=subprocess.PIPE)
    assert parent.stderr.read() == b""
    assert parent.wait() == 0
