"""TRL's GRPOTrainer on given prompts: prints what each step took. Needs trl, datasets, peft, no tinkergym.

Its settings are the fastest that TRL has for this work on a CPU: one optimizer step per batch, no reference
model, no recomputed logprobs, no gradient checkpointing, nothing logged or saved on the way.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


def main() -> None:
    """Train as the JSON job given on the command line says; the last line printed is the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "job", help="JSON: model, prompts, group_size, answer_tokens, steps, learning_rate, lora_rank"
    )
    job = json.loads(parser.parse_args().job)

    import torch
    import transformers
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer, __version__  # type: ignore[attr-defined]

    transformers.logging.set_verbosity_error()
    ends: list[float] = []
    answer_tokens: list[int] = []
    prompt_tokens: list[int] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    def reward(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        answer_tokens.append(sum(map(len, completion_ids)))
        texts = [completion[0]["content"] for completion in completions]
        return [len(set(text)) + sum(map(ord, text[:8])) % 97 / 97 for text in texts]

    class Trainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            scored = super()._generate_and_score_completions(inputs)
            prompt_tokens.append(int(scored["prompt_mask"].sum()))
            return scored

    rows = [{"prompt": [{"role": "user", "content": prompt}]} for prompt in job["prompts"]]
    lora = job["lora_rank"] and LoraConfig(
        r=job["lora_rank"],
        lora_alpha=2 * job["lora_rank"],
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=len(rows) * job["group_size"],
            num_generations=job["group_size"],
            max_completion_length=job["answer_tokens"],
            max_steps=job["steps"],
            learning_rate=job["learning_rate"],
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            temperature=1.0,
            model_init_kwargs={"dtype": "float32"},
            report_to="none",
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
            seed=0,
        )
        trainer = Trainer(
            model=job["model"],
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list(rows),
            peft_config=lora or None,
            callbacks=[Clock()],
        )
        began = time.perf_counter()
        trainer.train()
    steps = [after - before for before, after in zip([began, *ends], ends, strict=False)]
    print(
        json.dumps(
            {
                "step_seconds": steps,
                "answer_tokens": answer_tokens,
                "prompt_tokens": prompt_tokens,
                "threads": torch.get_num_threads(),
                "versions": {
                    "trl": __version__,
                    "torch": torch.__version__,
                    "transformers": transformers.__version__,
                },
                "script": Path(__file__).name,
            }
        )
    )


if __name__ == "__main__":
    main()
