"""Prompts of scripted episodes against the chat template's own text, for each family of templates."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.common import Figure, write_result
from benchmarks.template_families import OURS, SHIPPED, families, template_bundle
from tinkergym.agent.prompt_check import TemplateReference
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.round_trip import play_conversation
from tinkergym.errors import TemplateError
from tinkergym.messages import Message, assistant, system, user
from tinkergym.schema.jobs.parts import Reasoning
from tinkergym.schema.views import RendererBundle

EPISODES = 600
_TEXTS = (
    "",
    "hello",
    "  spaced out \n",
    "a b c\n1 2 3\n" * 30,
    "Grüße 世界 👩🏽\u200d🚀 e\u0301",
    "{{ messages }}{% raw %}",
    "<think>no</think>",
    "</think>",
    "<tool_response>\n42\n</tool_response>",
    "/no_think",
    "\U0010fffd\U0010fffe private",
    "tinkergymAnswer7f3a tinkergymLiteral7f3aNo0End tgA0z Antwort0tinkergym",
)
_THOUGHT = "<think>\nLet me see.\n</think>\n\n"


@dataclass(slots=True)
class Outcome:
    """The results of a template's episodes."""

    episodes: int = 0
    prompts: int = 0
    segments: int = 0
    refused: int = 0
    """Episodes that the template itself refuses; not among `episodes`."""
    faults: list[str] = field(default_factory=list)


def measure() -> list[Figure]:
    """Play every family."""
    figures, details = [], {}
    wanted, found = [*dict.fromkeys([*SHIPPED, *OURS])], families()
    for family in wanted:
        outcomes = {
            name: play_template(template_bundle(name, source), -(-EPISODES // len(found[family])))
            for name, source in found.get(family, {}).items()
        }
        details[family] = {
            name: {
                "episodes": one.episodes,
                "prompts": one.prompts,
                "segments": one.segments,
                "refused": one.refused,
                "faults": one.faults[:3],
            }
            for name, one in outcomes.items()
        }
        print(family, details[family], flush=True)
    right = [
        family
        for family, outcomes in details.items()
        if outcomes and not any(one["faults"] for one in outcomes.values())
    ]
    prompts = sum(one["prompts"] for outcomes in details.values() for one in outcomes.values())
    figures.append(
        Figure(
            what=f"template families without a wrong prompt, {EPISODES} episodes each: {', '.join(wanted)}",
            asked="all",
            measured=f"{len(right)} of {len(wanted)}, {prompts:,} prompts",
            reached=len(right) == len(wanted),
        )
    )
    return write_result("templates", figures, details)


def play_template(bundle: RendererBundle, episodes: int) -> Outcome:
    """Play scripted episodes with a template; compare each prompt with the template's own text."""
    renderer, reference = Renderer.from_bundle(bundle), TemplateReference(bundle)
    outcome, seed = Outcome(), 0
    while outcome.episodes < episodes and seed < 10 * episodes:
        draw = random.Random(seed)
        opening, replies = _conversation(draw, reference.special_texts)
        answers = [_answer(draw, renderer, reference, reply) for reply in replies]
        reasoning: Reasoning = draw.choice(["keep", "keep", "drop"])
        played = play_conversation(renderer, reference, opening, replies, answers, reasoning=reasoning)
        if played.refusal:
            outcome.refused += 1
        else:
            outcome.episodes += 1
            outcome.prompts += len(replies) + 1
            outcome.segments += played.segments
        if played.fault:
            outcome.faults.append(f"episode {seed}, reasoning={reasoning}: {played.fault}")
        seed += 1
    return outcome


def _conversation(draw: random.Random, specials: Sequence[str]) -> tuple[list[Message], list[list[Message]]]:
    def text() -> str:
        parts = [draw.choice([*_TEXTS, *draw.sample(specials, min(3, len(specials)))]) for _ in range(2)]
        return "".join([f"{draw.randrange(100)} ", *parts])

    opening = [system(text())] if draw.random() < 0.5 else []
    if draw.random() < 0.2:
        opening += [user(text()), assistant(text())]
    opening.append(user(text()))
    # Few templates support every kind of reply, so an episode has one or two.
    kinds = draw.sample(["user", "user", "user", "tool", "two"], 2)
    replies: list[list[Message]] = []
    for _ in range(draw.randrange(1, 8)):
        kind = draw.choice(kinds)
        if kind == "two":
            replies.append([user(text()), user(text())])
        else:
            replies.append([{"role": "tool" if kind == "tool" else "user", "content": text()}])
    return opening, replies


def _answer(
    draw: random.Random, renderer: Renderer, reference: TemplateReference, reply: Sequence[Message]
) -> list[int]:
    """Return the ids of an answer: words, reasoning, quoted tokens or noise, with any ending."""
    kind = draw.choice(["words", "reasoning", "quotes", "noise"])
    words = draw.choice(["b2", " 46", "I take c3.\n", "Ünïcode 世"])
    if kind == "reasoning":
        words = _THOUGHT + words
    elif kind == "quotes":
        words += draw.choice([*_TEXTS, *reference.special_texts])
    try:
        closed = renderer.encode_answer(words, reply)
    except TemplateError:  # the template refuses the reply, which ends the episode
        closed = renderer.encode_answer(words)
    ids = [token for token in closed if token not in reference.stop_ids]
    if kind == "noise":
        noise = [draw.randrange(renderer.vocab_size) for _ in range(8)]
        ids = [token for token in noise if token not in reference.stop_ids]
    ending = draw.random()
    if ending < 0.2:
        return ids or closed
    if ending < 0.4:
        return [*ids, draw.choice(renderer.stop_ids)]
    return [*ids, closed[-1]] if kind in ("noise", "quotes") else closed
