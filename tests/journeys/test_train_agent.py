"""Agent programs as they are, trained in a service: their calls are episodes like any other's."""

import itertools

import pytest

import tinkergym as tg
from tests.tinkergym.recording.sessions import said, user

pytestmark = pytest.mark.service


def test_trains_program_with_adapter_per_role_certified_and_evaluated(client, tmp_path):
    seen, numbers = [], itertools.count()

    def solve_and_judge(session):
        seen.append((session.task, session.is_evaluation))
        number = next(numbers)
        draft = said(session, user(f"Say {session.task}"), role="solver", max_tokens=4)
        said(session, user(f"Judge {draft['content']}"), role="critic", max_tokens=4)
        return {"solver": number % 2, "critic": -(number % 2)}

    job = client.train_agent(
        solve_and_judge,
        {"train": ["a", "b"], "test": ["c"]},
        model="nano",
        roles={"solver": tg.Train(), "critic": tg.Train()},
        steps=2,
        algorithm=tg.GRPO(groups_per_step=1, group_size=4, aggregation="sequence"),
        sampling=tg.Sampling(max_turn_tokens=4, temperature=3.0),
        evaluate=tg.EvaluateEvery(2, split="test", episodes=2),
    )
    assert job.wait().state == "completed"
    played = [(one.trajectory.agent, len(one.trajectory.turns)) for one in job.episodes()]
    assert sorted(played) == [("critic", 1)] * 8 + [("solver", 1)] * 8, played
    checks = {check.name: check.verdict for check in job.certificate(tmp_path).checks}
    assert set(checks.values()) == {"holds"}, checks
    assert [one.episodes for one in job.evaluations()] == [2, 2]
    assert {task for task, is_evaluation in seen if is_evaluation} == {"c"}
