"""A service with everything in it, for all journeys of a process: to start one takes seconds."""

import contextlib
import os
import sys

import pytest

import tinkergym as tg
from tests.backend.s3_server import s3_server
from tests.environment_server import environment_server
from tests.journeys import packs
from tests.tinkergym.rubrics.test_llm_judge import Judge
from tinkergym.cli.local_service import local_service

__all__ = ["s3_server"]


@pytest.fixture(scope="package")
def judge():
    """A judge that the service may ask."""
    with Judge() as server:
        yield server
        server.shutdown()


@pytest.fixture(scope="package")
def environment_url():
    """An environment server that the service may connect to."""
    with environment_server("board/TicTacToeVs-v0", capacity=4) as url:
        yield url


@pytest.fixture(scope="package")
def service(tmp_path_factory, judge, environment_url):
    folder = tmp_path_factory.mktemp("packs")
    packs.install(folder)
    origin = judge.url.removesuffix("/v1")
    settings = ['environment_variables=["PACK_KEY"]']
    settings += [f'judge_urls=["{origin}"]', f'environment_urls=["{environment_url}"]']
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("TINKERGYM_HOME", str(tmp_path_factory.mktemp("home")))
        for name in ("TINKERGYM_URL", "TINKERGYM_API_KEY"):
            patch.delenv(name, raising=False)
        with pytest.MonkeyPatch.context() as starting:
            starting.setenv("CANARY_KEY", "of the operator")
            starting.setenv("PACK_KEY", "of a pack")
            starting.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, sys.path)]))
            stack.enter_context(local_service(announce=lambda line: None, settings=settings))
        yield


@pytest.fixture
def client(service):
    with tg.Client() as client:
        yield client
