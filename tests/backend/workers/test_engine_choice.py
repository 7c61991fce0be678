from __future__ import annotations

import threading
from pathlib import Path

from backend.settings.served_models import PACKAGED_MODELS, VllmSettings
from backend.workers.engine_choice import make_engine
from tinkergym.schema.sampling import Completion, SampleRequest


def test_draws_by_scripted_engine_no_more_than_context_holds(tmp_path):
    engine = make_engine(
        "scripted",
        Path(PACKAGED_MODELS["nano"]),
        devices=["cpu"],
        device_lock=threading.Lock(),
        threads=1,
        vllm=VllmSettings(),
        log=tmp_path / "log",
    )
    few, endless = (
        SampleRequest(request_id="r", policy="", prompt_ids=[1, 2], max_tokens=tokens)
        for tokens in (5, 10**15)
    )
    short, full = engine.generate_together([few, endless])
    engine.close()
    assert isinstance(full, Completion), full
    assert len(full.token_ids) == engine.context_length - 2
    assert full.token_ids[:5] == short.token_ids
