"""Calls of one action that run together: their results, counts and failures are as if in order."""

import threading

import pytest

import tinkergym as tg
from tinkergym.errors import EnvironmentInfrastructureError, InvalidRequestError
from tinkergym.tool_calls.call import ToolCall
from tinkergym.tool_calls.syntax import render_calls
from tinkergym.tools import tool
from tinkergym.tools.runner import ToolRunner
from tinkergym.wrappers import ToolCalling

meeting = threading.Barrier(3, timeout=120)


@tool
def meet(name: str) -> str:
    """Return once three calls wait here."""
    meeting.wait()
    return name


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
def fail(name: str) -> str:
    """Fail."""
    raise RuntimeError(name)


@tool
def lose(name: str) -> str:
    """Lose the infrastructure."""
    raise EnvironmentInfrastructureError(name, code=name)


class Asking(tg.SingleTurnEnv):
    def ask(self, options):
        return "What is 2+2?"

    def score(self, answer):
        return 0.0


class Counting:
    """An environment whose tool must run alone and in order."""

    def __init__(self):
        self.seen = []
        self.running = 0

    @tool
    def note(self, name: str) -> int:
        """Note."""
        self.running += 1
        self.seen.append(name)
        assert self.running == 1
        self.running -= 1
        return len(self.seen)


def written(*calls):
    return render_calls([ToolCall(name, arguments) for name, arguments in calls], "hermes")


def ran(tools, *calls, parallel=8, **settings):
    runner = ToolRunner({one.name: one for one in tools}, "hermes", parallel_calls=parallel, **settings)
    runner.begin()
    done = runner.run(written(*calls))
    return [text for _, text in done.results], {name: n for name, n in done.counts.items() if n}


def test_runs_independent_calls_together_and_keeps_their_order():
    texts, counts = ran([meet], *[("meet", {"name": name}) for name in "abc"])
    assert (texts, counts) == (["a", "b", "c"], {"tool_calls": 3})


MIXED = [
    ("add", {"a": 1, "b": 1}),
    ("add", {"a": "x"}),
    ("fail", {"name": "f"}),
    ("none", {}),
    ("add", {"a": 2, "b": 2}),
    ("add", {"a": 3, "b": 3}),
]


@pytest.mark.parametrize("max_calls", [None, 1, 2, 3, 4])
def test_gives_same_results_and_counts_as_one_by_one(max_calls):
    both = [ran([add, fail], *MIXED, parallel=most, max_calls=max_calls) for most in (1, 8)]
    assert both[0] == both[1]


def test_runs_methods_of_environment_alone_and_in_order():
    env = Counting()
    calls = [("note", {"name": "1"}), ("add", {"a": 1, "b": 1}), ("note", {"name": "2"})]
    texts, _ = ran([env.note, add], *calls)
    assert (texts, env.seen) == (["1", "2", "2"], ["1", "2"])


def test_raises_first_failure_of_infrastructure():
    with pytest.raises(EnvironmentInfrastructureError) as failure:
        ran([add, lose], ("add", {"a": 1, "b": 1}), ("lose", {"name": "one"}), ("lose", {"name": "two"}))
    assert failure.value.code == "one"


@pytest.mark.parametrize("parallel_calls", [0, True, 1.5, None])
def test_refuses_impossible_number_of_calls(parallel_calls):
    with pytest.raises(InvalidRequestError) as refused:
        ToolCalling(Asking(), tools=[add], parallel_calls=parallel_calls)
    assert refused.value.field == "parallel_calls"


def test_records_setting_only_where_it_is_chosen():
    assert "parallel_calls" not in ToolCalling(Asking(), tools=[add])._saved_kwargs
    assert ToolCalling(Asking(), tools=[add], parallel_calls=4)._saved_kwargs["parallel_calls"] == 4
