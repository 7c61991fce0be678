"""Why vLLM did not start, from what it wrote."""

from __future__ import annotations

import pytest

from backend.engines.vllm.process import reason_in

ENGINE = "(EngineCore pid=7) ERROR 11-23 12:26:14 [core.py:1510]"
CORE = f"""\
{ENGINE}     raise ValueError("no LoRA yet.")
{ENGINE} ValueError: GPT2LMHeadModel does not support LoRA yet.
Traceback (most recent call last):
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
"""
DEAD = f"""\
{ENGINE} RuntimeError: Unsupported CPU attention configuration: head_dim=8
(MainProcess pid=1) ERROR 11-23 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)
"""
INSPECTED = f"""\
{ENGINE} RuntimeError: Error raised in subprocess:
{ENGINE} ModuleNotFoundError: No module named 'torchvision'
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, Model architectures ['Gemma3'] failed to be inspected. Please check the logs.
    For further information visit https://errors.pydantic.dev
"""
REFUSED = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, the model is too long
"""


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (CORE, "ValueError: GPT2LMHeadModel does not support LoRA yet."),
        (DEAD, "RuntimeError: Unsupported CPU attention configuration: head_dim=8"),
        (INSPECTED, "ModuleNotFoundError: No module named 'torchvision'"),
        (REFUSED, "ValidationError: 1 validation error for ModelConfig Value error, the model is too long"),
        ("EngineDeadError: it is dead", "EngineDeadError: it is dead"),
        ("Killed", "Killed"),
        ("", ""),
    ],
)
def test_takes_as_reason_the_error_that_others_wrap(log, reason):
    assert reason_in(log) == reason or reason_in(log).endswith(f".{reason}")
