import pytest

from backend.admission.remote_environments import check_evaluations
from backend.config import ServiceConfig
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.evaluate_every import EvaluateEvery
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec

JUDGE = {"url": "https://judge.example/v1", "model": "small"}


def evaluated(judge, **settings):
    evaluation = EvaluateEvery(5, env_kwargs={"judge": judge})
    return RLSpec(environment=EnvironmentRef(id="math/Sums-v0"), steps=5, evaluate=[evaluation], **settings)


def test_requires_that_judge_of_service_played_evaluation_is_listed(tmp_path):
    closed = ServiceConfig(data_dir=tmp_path)
    listed = ServiceConfig(data_dir=tmp_path, judge_urls=["https://judge.example"])
    check_evaluations(evaluated(JUDGE), listed)
    check_evaluations(evaluated(JUDGE, rollout="client"), closed)
    with pytest.raises(InvalidRequestError) as caught:
        check_evaluations(evaluated(JUDGE), closed)
    assert caught.value.field == "environment.kwargs.judge.url"
    with pytest.raises(InvalidRequestError):
        check_evaluations(evaluated({**JUDGE, "api_key": "sk-secret"}), listed)
