"""Recreate the nano model: `make nano`. Seeded; takes minutes on two cores.

The tokenizer is trained on the text of our packs; the model starts random and is warmed up on their
dialogues. It then answers in the right format and plays badly, which is where training should start.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from pathlib import Path

import torch
from nano_card import Record, write_card
from nano_dialogues import PARTS, dialogues, part_batches
from nano_scores import scores
from nano_tokenizer import END_OF_TEXT, TURN_END, train_tokenizer, write_tokenizer
from nano_warm_up import Example, Shape, WarmUp, warm_up
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

FOLDER = Path(__file__).parent.parent / "backend" / "models" / "nano"
_LOSS_WINDOW = 50  # number of steps averaged in a reported loss


def main() -> None:
    """Run the whole recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder to write")
    parser.add_argument("--steps", type=int, default=1000, help="train steps")
    parser.add_argument("--seed", type=int, default=0, help="decides data, order and first weights")
    parser.add_argument("--threads", type=int, default=1, help="of torch; they decide the last bits")
    parser.add_argument("--games", type=int, default=400, help="episodes per score in the card; 0 for none")
    parser.add_argument(
        "--tokenizer-dialogues", type=int, default=1000, help="that the tokenizer learns from, of each kind"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)
    started = time.perf_counter()
    shape, settings = Shape(), WarmUp(steps=arguments.steps)
    tokenizer = _tokenizer(shape, arguments.tokenizer_dialogues, arguments.seed)
    model, losses = _model(shape, settings, tokenizer, arguments.seed)
    seconds = time.perf_counter() - started
    arguments.output.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(arguments.output)
    write_tokenizer(tokenizer, arguments.output, shape.context)
    record = Record(
        seed=arguments.seed,
        threads=arguments.threads,
        shape=shape,
        settings=settings,
        parameters=sum(p.numel() for p in model.parameters()),
        seconds=seconds,
        losses=losses,
        scores=scores(model, tokenizer, arguments.games) if arguments.games else {},
    )
    write_card(arguments.output, record)
    print((arguments.output / "README.md").read_text(encoding="utf-8"))


def _tokenizer(shape: Shape, count: int, seed: int) -> Tokenizer:
    texts = [
        message["content"]
        for part in PARTS
        for messages in dialogues(part, count, seed)
        for message in messages
    ]
    words = (Path(__file__).parent / "nano_words.txt").read_text(encoding="utf-8")
    return train_tokenizer([*texts, *words.splitlines()], shape.vocab)


def _model(
    shape: Shape, settings: WarmUp, tokenizer: Tokenizer, seed: int
) -> tuple[Qwen3ForCausalLM, dict[str, float]]:
    batches = [part_batches(part, tokenizer, settings.steps, seed) for part in PARTS]
    windows: list[deque[float]] = [deque(maxlen=_LOSS_WINDOW) for _ in PARTS]

    def step_examples(step: int) -> list[tuple[float, list[Example]]]:
        return [(part.share, batch[step]) for part, batch in zip(PARTS, batches, strict=True)]

    def means() -> dict[str, float]:
        return {part.name: sum(w) / len(w) for part, w in zip(PARTS, windows, strict=True)}

    def report(step: int, losses: list[float]) -> None:
        for window, loss in zip(windows, losses, strict=True):
            window.append(loss)
        if step % _LOSS_WINDOW == 0 or step == settings.steps:
            print(f"step {step}/{settings.steps}", {k: round(v, 3) for k, v in means().items()}, flush=True)

    torch.manual_seed(seed)
    end_of_text, turn_end = (tokenizer.token_to_id(token) for token in (END_OF_TEXT, TURN_END))
    model = Qwen3ForCausalLM(shape.config(end_of_text=end_of_text, turn_end=turn_end))
    warm_up(model, settings, step_examples, report)
    return model.eval(), means()


if __name__ == "__main__":
    main()
