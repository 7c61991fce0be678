import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import tinkergym as tg
from tests.tinkergym.rollout.processes import children, no_process_is_left_behind  # noqa: F401
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.rollout.executors import ProcessExecutor
from tinkergym.rollout.play_list import play
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.testing import ScriptedSampler, byte_bundle
from tinkergym.testing.faults import Sound, make_fault
from tinkergym.trajectory.trajectory import StopReason

RENDERER = Renderer.from_bundle(byte_bundle())


YES = ScriptedSampler(RENDERER, lambda prompt: "yes")


PATIENCE_SECONDS = 120.0
"""How long a call may take that is not meant to be cut: starting a process counts as one."""


def plans(environment, seeds, *, limits=None, **settings):
    return [
        EpisodePlan(
            episode_id=f"{environment}-{number}",
            seed=seed,
            policy="p",
            environment=EnvironmentRef(id=environment),
            decoding=Decoding(max_turn_tokens=8, seed=1000 * number),
            limits=limits or Limits(step_timeout_seconds=PATIENCE_SECONDS, max_turns=20),
            **settings,
        )
        for number, seed in enumerate(seeds)
    ]


def played(requests, executor, make_env=make_fault, sampler=YES, **settings):
    results = play(
        requests, sampler=sampler, renderer=RENDERER, make_env=make_env, executor=executor, **settings
    )
    return {result.episode_id: result.trajectory for result in results}


def test_ends_alone_the_episode_of_environment_killing_its_process():
    episodes = played(plans("Dies", [0, 1, 2]), ProcessExecutor(2))
    reasons = Counter(trajectory.stop_reason for trajectory in episodes.values())
    assert reasons == {StopReason.TERMINATED: 2, StopReason.ENVIRONMENT_ERROR: 1}
    assert episodes["Dies-1"].error == "the environment's process ended with exit status 3 during step"
    assert not episodes["Dies-1"].completed


def test_says_what_cannot_be_sent_to_a_process():
    class Local(tg.SingleTurnEnv):
        def ask(self, options):
            return "?"

        def score(self, answer):
            return 1.0

    (trajectory,) = played(plans("local", [0]), ProcessExecutor(1), lambda reference: Local()).values()
    assert trajectory.stop_reason is StopReason.ENVIRONMENT_ERROR
    assert "define the class at the top level of a module" in trajectory.error


PROGRAM = """
import ctypes, threading
from tinkergym.rollout.environment_process import EnvironmentProcess
from tinkergym.testing.faults import HangsInStep

class HoldsTheInterpreter(HangsInStep):
    def go_wrong(self):
        ctypes.PyDLL(None).sleep(600)  # as a regular expression may

if __name__ == "__main__":
    env = EnvironmentProcess({kind})
    starting = threading.Thread(target=env.start)  # whose end is not the program's
    starting.start()
    starting.join()
    env.reset(seed=1)
    print("hangs", flush=True)
    env.step("go")
"""


@pytest.mark.parametrize(
    "kind", [pytest.param("HangsInStep", marks=pytest.mark.full("ends more easily")), "HoldsTheInterpreter"]
)
def test_ends_environments_process_with_a_killed_program(kind, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(kind=kind))
    program = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "hangs\n"
    (child,) = children(program.pid)
    program.kill()
    program.wait()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while lives(child):
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    program.stdout.close()


def lives(pid):
    """Whether a process neither is gone nor waits as a zombie for whoever adopted it."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:  # It may go at any moment.
        return False


class TellsItsNiceness(Sound):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float(os.nice(0)), *rest


def make_one_that_tells_its_niceness(_):
    return TellsItsNiceness()


def test_places_separate_processes_of_environments_behind_sampling_and_training():
    plays = plans("own/Niceness-v0", [1])
    (trajectory,) = played(plays, ProcessExecutor(1), make_one_that_tells_its_niceness).values()
    assert trajectory.turns[0].reward == min(os.nice(0) + 14, 19)
