import subprocess
import sys

CHILD = """
import threading
from backend.processes.one_question import one_question

threading.Thread(target=threading.Event().wait).start()  # an environment's, which never ends
with one_question() as (question, answers):
    print("noise of an environment")
    answers.write(question["word"])
"""


def test_prints_answer_alone_and_lets_no_thread_keep_the_process():
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        input='{"word": "yes"}',
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (child.returncode, child.stdout) == (0, "yes")
    assert "noise of an environment" in child.stderr
