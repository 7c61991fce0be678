"""Recreate the nano-instruct model: `make nano-instruct`. Seeded; takes about half an hour on one core.

The tokenizer is trained on the dialogues of `instruct_dialogues`; the model starts random and is trained on
them. It then follows short instructions, often but not always correctly: a start for reinforcement learning
in your own environment.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from pathlib import Path

import torch
from instruct_card import write_card
from instruct_dialogues import GAMES, KINDS
from instruct_scores import scores
from nano_dialogues import Part, dialogues, part_batches
from nano_tokenizer import END_OF_TEXT, TOOL_TEMPLATE, TURN_END, train_tokenizer, write_tokenizer
from nano_warm_up import Example, Shape, WarmUp, warm_up
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

FOLDER = Path(__file__).parent.parent / "backend" / "models" / "nano-instruct"
SHAPE = Shape(hidden=160, layers=3, heads=5, mlp=560, vocab=2048, context=1024)
PARTS = (
    Part(
        name="to say and to choose",
        module="instruct_dialogues",
        dialogues_per_step=40,
        share=0.3,
        options={
            "kinds": ("say", "say often", "greet", "ask", "name", "choose", "number", "yes or no", "feel")
        },
    ),
    Part(
        name="to work out",
        module="instruct_dialogues",
        dialogues_per_step=56,
        share=0.35,
        options={"kinds": ("add", "larger", "opposite", "place", "reorder", "count", "spell")},
    ),
    Part(
        name="to write",
        module="instruct_dialogues",
        dialogues_per_step=24,
        share=0.2,
        options={"kinds": ("sentence", "story", "words")},
    ),
    Part(
        name="games of several turns",
        module="instruct_dialogues",
        dialogues_per_step=16,
        share=0.15,
        options={"kinds": tuple(GAMES)},
    ),
)
assert {kind for part in PARTS for kind in part.options["kinds"]} == {*KINDS, *GAMES}
_LOSS_WINDOW = 50  # number of steps averaged in a reported loss


def main() -> None:
    """Run the whole recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder to write")
    parser.add_argument("--steps", type=int, default=2000, help="train steps")
    parser.add_argument("--seed", type=int, default=0, help="decides data, order and first weights")
    parser.add_argument("--threads", type=int, default=1, help="of torch; they decide the last bits")
    parser.add_argument("--dialogues", type=int, default=200, help="per score in the card; 0 for none")
    parser.add_argument(
        "--tokenizer-dialogues", type=int, default=4000, help="that the tokenizer learns from, of each part"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)
    started = time.perf_counter()
    settings = WarmUp(steps=arguments.steps)
    tokenizer = _tokenizer(arguments.tokenizer_dialogues, arguments.seed)
    model, losses = _model(settings, tokenizer, arguments.seed)
    seconds = time.perf_counter() - started
    arguments.output.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(arguments.output)
    write_tokenizer(tokenizer, arguments.output, SHAPE.context, TOOL_TEMPLATE)
    write_card(
        arguments.output,
        command=f"--seed {arguments.seed} --steps {arguments.steps} --threads {arguments.threads}",
        shape=SHAPE,
        parameters=sum(p.numel() for p in model.parameters()),
        seconds=seconds,
        losses=losses,
        parts=PARTS,
        steps=arguments.steps,
        scores=scores(model, tokenizer, arguments.dialogues) if arguments.dialogues else {},
    )
    print((arguments.output / "README.md").read_text(encoding="utf-8"))


def _tokenizer(count: int, seed: int) -> Tokenizer:
    texts = [
        message["content"]
        for part in PARTS
        for messages in dialogues(part, count, seed)
        for message in messages
    ]
    words = (Path(__file__).parent / "nano_words.txt").read_text(encoding="utf-8")
    return train_tokenizer([*texts, *words.splitlines()], SHAPE.vocab)


def _model(settings: WarmUp, tokenizer: Tokenizer, seed: int) -> tuple[Qwen3ForCausalLM, dict[str, float]]:
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
    model = Qwen3ForCausalLM(SHAPE.config(end_of_text=end_of_text, turn_end=turn_end))
    warm_up(model, settings, step_examples, report)
    return model.eval(), means()


if __name__ == "__main__":
    main()
