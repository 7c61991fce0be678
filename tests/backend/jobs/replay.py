"""One step of a job, learned with one setting after the other: from the same policy and the same episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from backend.jobs.rl_strategy import Reinforcement
from backend.jobs.run_evidence import RunEvidence
from tests.backend.lab import Lab
from tests.backend.watched_jobs import job_spec
from tinkergym.schema.events import JobState

Settings = Mapping[str, object]
_STEP = 2
"""Not the first: the policy has left its beginning, and AdamW has moments."""


def that_learn_the_same(
    lab: Lab, monkeypatch, job: Settings, others: Sequence[Settings]
) -> list[list[Settings]]:
    """Run a job; return those of the other settings by which one of its steps learns the same, if any do.

    Args:
        lab: Where it runs.
        monkeypatch: Puts the learning in.
        job: Its settings.
        others: What replaces some of them in the step that is learned again.
    """
    job = {**job, "deterministic": True, "steps": _STEP + 2, "checkpoint_every": 1}
    learned: dict[str, list[Settings]] = {}
    learn = Reinforcement.learn

    def learn_again(strategy, context, step, played):
        if step == _STEP:
            for settings in others:
                # The notes count what the job itself learns from.
                other = replace(context, spec=job_spec(**job | settings), evidence=RunEvidence())
                learn(strategy, other, step, played)
                learned.setdefault(context.policy.take_weights().sha256, []).append(settings)
                assert context.policy.restore(at_most=step - 1) == step - 1
        return learn(strategy, context, step, played)

    monkeypatch.setattr(Reinforcement, "learn", learn_again)
    job_id = lab.start(**job)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED, lab.events(job_id, "state")[-1]
    assert sum(map(len, learned.values())) == len(others)
    return [same for same in learned.values() if len(same) > 1]
