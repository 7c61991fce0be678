"""Merge an adapter into its base model: `python -m backend.learner.merging ADAPTER_DIR OUT_DIR --model M`.

If it fails with one of our errors, the last line of output is the error as JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from backend.learner.causal_lm import CausalLM
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.errors import ConflictError, TinkerGymError

_DTYPES = (torch.float32, torch.bfloat16)
"""Types in which a service may have loaded the base model; a manifest does not record it."""


def merge_adapter(
    adapter_dir: Path, out_dir: Path, *, model: str, base: str | None = None, fingerprint: str = ""
) -> None:
    """Write the base model with `scaling * B @ A` added to its weights, float32, in Hugging Face format.

    Args:
        adapter_dir: The adapter in PEFT's format.
        out_dir: The target folder.
        model: The job's name for its base model.
        base: Directory or hub id of the base model; None uses the directory named by the adapter if it exists
            on this machine, else `model`.
        fingerprint: Fingerprint of the base model that the adapter was trained on; empty skips the check.

    Raises:
        UnknownModelError: The base model does not exist here.
        ConflictError: It is a different model.
    """
    config = json.loads((adapter_dir / "adapter_config.json").read_text(encoding="utf-8"))
    named = str(config.get("base_model_name_or_path") or "")
    found = base or (named if Path(named).is_dir() else PACKAGED_MODELS.get(model, model))
    whole = PeftModel.from_pretrained(_trained_on(found, fingerprint), str(adapter_dir))
    whole.merge_and_unload(safe_merge=True).save_pretrained(out_dir)


def _trained_on(found: str, fingerprint: str) -> Any:
    """Load the base model in float32, with its values from training."""
    for dtype in _DTYPES:
        lm = CausalLM.load(found, device=torch.device("cpu"), dtype=dtype)
        # One that was trained on weights of fewer bits is merged into the whole ones.
        if not fingerprint or ":" in fingerprint or lm.fingerprint() == fingerprint:
            # Values rounded for training stay rounded, because the adapter was trained for them.
            return lm.model.float()
        del lm
        gc.collect()  # transformers' modules have reference cycles
    raise ConflictError(
        f"{found} is not the model that the adapter was trained on (the fingerprints differ)",
        hint="set the right one with --base DIRECTORY_OR_HUB_ID",
        field="base",
    )


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="backend.learner.merging")
    parser.add_argument("adapter_dir", type=Path)
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--base")
    parser.add_argument("--fingerprint", default="")
    given = parser.parse_args()
    try:
        merge_adapter(
            given.adapter_dir,
            given.out_dir,
            model=given.model,
            base=given.base,
            fingerprint=given.fingerprint,
        )
    except TinkerGymError as error:
        print(json.dumps(error.to_wire()))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
