from __future__ import annotations

import pytest

from tinkergym.wire import FullParameters, LoRA

CANARY = [
    {"prompt": f"{word}?", "completion": reply}
    for word, reply in [("sky", "blue"), ("grass", "green"), ("snow", "white"), ("coal", "black")]
]


@pytest.mark.parametrize("adapter", [LoRA(rank=8), FullParameters()])
def test_what_was_written_is_what_is_sampled_afterwards(lab, written, adapter):
    rate = 1e-2 if adapter.kind == "lora" else 2e-3
    job_id = written.run("sft", CANARY, steps=40, batch_size=4, learning_rate=rate, adapter=adapter)
    steps = lab.events(job_id, "step")
    assert [step.step for step in steps] == list(range(1, 41))
    assert steps[-1].loss < 0.1 < 1 < steps[0].loss
    assert [written.answer(job_id, row["prompt"]) for row in CANARY] == [r["completion"] for r in CANARY]
