"""The scripted policy is called as the real one is."""

import inspect

from backend.policies.trained_policy import TrainedPolicy
from tests.backend.scripted_policy import ScriptedPolicy


def test_takes_every_call_that_a_loop_makes():
    calls = {
        name: call
        for name, call in vars(TrainedPolicy).items()
        if inspect.isfunction(call) and not name.startswith("_")
    }
    assert {"forward_backward", "optim_step", "publish", "save"} <= calls.keys()
    for name, call in calls.items():
        wanted, found = (inspect.signature(one).parameters for one in (call, vars(ScriptedPolicy)[name]))
        assert [(one.name, one.kind) for one in wanted.values()] == [
            (one.name, one.kind) for one in found.values()
        ], name
