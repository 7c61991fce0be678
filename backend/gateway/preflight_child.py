"""`python -m backend.gateway.preflight_child`: make and reset one environment and measure its first prompt.

The question comes on stdin, the answer goes to stdout, both as JSON; what the environment prints, to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from backend.processes import die_with_parent
from tinkergym.core import refuse_unfinished
from tinkergym.errors import (
    ImageObservationError,
    InvalidEnvironmentError,
    TinkerGymError,
    UnknownEnvironmentError,
)
from tinkergym.loop.environment_host import system_prompt_of
from tinkergym.loop.renderer import Renderer
from tinkergym.messages import NOT_IN_WORDS, messages_to_answer, opening_messages
from tinkergym.registration import make_environment, pack_of
from tinkergym.wire import EnvironmentRef, RendererBundle

_SEEDS = (0, 1, 2, 3)
"""First prompts differ in length; the longest of these counts."""
_TRACEBACK = 2000


def examine(reference: EnvironmentRef, bundle: RendererBundle, system_prompt: str | None) -> dict[str, Any]:
    """Return the length of the longest first prompt, in tokens, the pack's version, and the system prompt.

    Raises:
        UnknownEnvironmentError: No installed pack has this environment.
        InvalidEnvironmentError: It cannot be made or reset, or shows something that is no text.
    """
    try:
        env = make_environment(reference)
    except UnknownEnvironmentError as error:
        separator = " " if error.hint.endswith("?") else "; "
        hint = f"{error.hint}{separator}an environment of your own trains with rollout='client'"
        raise UnknownEnvironmentError(error.message, hint=hint, field="environment.id") from None
    refuse_unfinished(env)
    renderer = Renderer.from_bundle(bundle)
    longest = 0
    environment_prompt = None
    for seed in _SEEDS:
        try:
            observation, _ = env.reset(seed=seed)
            environment_prompt = system_prompt_of(env)
        except Exception as error:
            story = traceback.format_exc()[-_TRACEBACK:].strip()
            raise InvalidEnvironmentError(
                f"reset(seed={seed}) of {reference.id} failed: {story}",
                hint=f"repair this first: {type(error).__name__}",
                field="environment",
            ) from error
        try:
            messages = opening_messages(
                messages_to_answer(observation),
                job_prompt=system_prompt,
                environment_prompt=environment_prompt,
            )
        except ImageObservationError as error:
            raise ImageObservationError(f"{reference.id}: {error.message}", field="environment") from error
        except (TypeError, ValueError) as error:
            raise InvalidEnvironmentError(
                f"{reference.id} cannot be read by a language model: {error}",
                hint=NOT_IN_WORDS,
                field="environment",
            ) from error
        longest = max(longest, len(renderer.start(messages)))
    env.close()
    pack = pack_of(reference.id)
    return {
        "prompt_tokens": longest,
        "packs": {pack.name: pack.version} if pack else {},
        "environment_prompt": environment_prompt,
    }


def main() -> None:
    """Answer one question."""
    die_with_parent()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    question = json.load(sys.stdin)
    try:
        answer = examine(
            EnvironmentRef.model_validate(question["environment"]),
            RendererBundle.model_validate(question["bundle"]),
            question["system_prompt"],
        )
    except TinkerGymError as error:
        if not error.field:
            error.field = "environment"
        answer = {"error": error.to_wire()}
    with answers:
        json.dump(answer, answers)
    # Not by returning: a thread of the environment could keep the process, and the job, waiting.
    os._exit(0)


if __name__ == "__main__":
    main()
