"""The processes that play evaluations: what they may take. What they play is in `tests/journeys`."""

import asyncio
import json
import sys
from types import SimpleNamespace

import pytest
from starlette.requests import Request

from backend.config import ServiceConfig
from backend.evaluations.service_evaluations import ServiceEvaluations
from backend.gateway.routes_evaluations import evaluate
from backend.settings.gateway_limits import GatewayLimits
from tinkergym.errors import TooManyRequestsError
from tinkergym.schema.evaluation import EvaluationEpisode, EvaluationRequest
from tinkergym.schema.jobs.parts import EnvironmentRef


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Return a function that lets a shell script stand for the process that plays; it returns the lines."""

    def played(script, seconds=0.5):
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\ncat > /dev/null\n{script}\n")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))
        wanted = EvaluationRequest(
            environment=EnvironmentRef(id="own/Env-v0"),
            policy="nano",
            model="nano",
            episodes=[EvaluationEpisode(episode_id="one", seed=0, sampling_seed=0)],
        )

        async def lines():
            evaluations = ServiceEvaluations(GatewayLimits(evaluation_seconds=seconds))
            return b"".join([line async for line in evaluations.lines("ada", wanted, "http://x", "key")])

        return asyncio.run(asyncio.wait_for(lines(), 120))

    return played


@pytest.mark.parametrize("script", ["echo {}; exec sleep 600", "echo {}; exec >&-; exec sleep 600"])
def test_bounds_time_of_an_evaluation_that_has_begun_to_answer(play, script):
    for seconds in (0.5, 5.0, 50.0):  # On a busy machine it may take some to begin.
        *begun, last = filter(None, play(script, seconds).splitlines())
        if begun:
            break
    (first,) = begun
    assert (first, json.loads(last)["error"]["type"]) == (b"{}", "InternalServiceError")
    assert f"more than {seconds:g} s" in json.loads(last)["error"]["message"]


def test_ends_evaluation_on_record_without_an_end(play):
    (last,) = filter(None, play("head -c 70000000 /dev/zero; exec sleep 600", seconds=600).splitlines())
    assert json.loads(last)["error"]["type"] == "InternalServiceError"
    assert "bytes" in json.loads(last)["error"]["message"]


def test_takes_at_most_four_evaluations_that_come_together(tmp_path):
    config = ServiceConfig(data_dir=tmp_path)
    state = SimpleNamespace(
        parts=SimpleNamespace(config=config), evaluations=ServiceEvaluations(config.limits)
    )
    scope = {"type": "http", "server": ("127.0.0.1", 1), "headers": [(b"authorization", b"Bearer key")]}
    request = Request({**scope, "app": SimpleNamespace(state=state)})
    wanted = EvaluationRequest(
        environment=EnvironmentRef(id="own/Env-v0"),
        policy="nano",
        model="nano",
        episodes=[EvaluationEpisode(episode_id="one", seed=0, sampling_seed=0)],
    )

    async def ask(times):
        # None of the answers begins before the last is there.
        return [await evaluate(request, SimpleNamespace(tenant_id="ada"), wanted) for _ in range(times)]

    taken = asyncio.run(ask(4))
    assert [answer.status_code for answer in taken] == [200] * 4
    with pytest.raises(TooManyRequestsError):
        asyncio.run(ask(1))
