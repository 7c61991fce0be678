"""`tinkergym tokens`: check a model's chat template and tokenizer for multi-turn training."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from tokenizers import Tokenizer

from tinkergym.agent.round_trip import RoundTrip, round_trip
from tinkergym.cli.console import out
from tinkergym.cli.json_output import AsJson, emit
from tinkergym.cli.key_value_settings import parse_settings
from tinkergym.cli.options import TemplateSettings
from tinkergym.remote.model_files import find_bundle
from tinkergym.schema.views import RendererBundle

_STYLES = {"same": "green", "different": "red", "refused": "yellow"}


def tokens(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model of the service, or a directory with tokenizer.json and a chat template.",
        ),
    ],
    *,
    template_set: TemplateSettings = None,
    as_json: AsJson = False,
) -> None:
    """Check that conversations built turn by turn have the tokens of the model's chat template.

    Plays synthetic conversations as in training and compares each prompt with the template's text of the
    whole conversation (as from apply_chat_template), for completions that end with any stop token or are cut
    off. They may differ within the policy's completions, which stay as they were sampled; for a difference
    anywhere else the exit code is 1. If a template rewrites the past, training opens a new segment.

    Example: tinkergym tokens nano
    """
    bundle = find_bundle(model)
    variables = {**bundle.template_variables, **parse_settings(template_set or [])}
    bundle = bundle.with_settings(variables, bundle.template_date)
    found = round_trip(bundle)
    tokenizer: Any = Tokenizer.from_str(bundle.tokenizer_json)
    stops = {token: tokenizer.id_to_token(token) for token in bundle.stop_ids}
    specials = {
        token: added.content for token, added in tokenizer.get_added_tokens_decoder().items() if added.special
    }
    if as_json:
        _emit(bundle, found, tokenizer.get_vocab_size(with_added_tokens=True), stops, specials)
    else:
        _print(bundle, found, tokenizer.get_vocab_size(with_added_tokens=True), stops, specials)
    if not found.exact:
        raise typer.Exit(1)


def _emit(
    bundle: RendererBundle, found: RoundTrip, size: int, stops: dict[int, str], specials: dict[int, str]
) -> None:
    emit(
        {
            "model": bundle.model,
            "exact": found.exact,
            "prefix_preserving": found.prefix_preserving,
            "rewrites_history": found.rewrites_history,
            "context_length": bundle.context_length,
            "vocabulary": size,
            "stop_ids": {str(token): text for token, text in stops.items()},
            "special_tokens": {str(token): text for token, text in specials.items()},
            "conversations": {
                result.name: {
                    "outcome": result.outcome,
                    "detail": result.detail,
                    "segments": result.segments,
                }
                for result in found.conversations
            },
        }
    )


def _print(
    bundle: RendererBundle, found: RoundTrip, size: int, stops: dict[int, str], specials: dict[int, str]
) -> None:
    _say(f"{bundle.model}: {size} tokens")
    _say(f"an answer ends with  {_listed(stops)}")
    _say(f"special tokens       {_listed(specials)}")
    _say(f"prefix-preserving    {_preserving(found.prefix_preserving)}")
    if found.rewrites_history:
        _say("the past             is rewritten: training opens a new segment in each turn")
    for result in found.conversations:
        style = _STYLES[result.outcome]
        detail = " ".join(result.detail.split())
        if result.segments > 1:
            detail = f"in {result.segments} segments {detail}"
        line = f"[{style}]{result.outcome:9}[/] {result.name:14} {escape(detail)}"
        out.print(line.rstrip(), highlight=False, soft_wrap=True)
    _say(
        "no difference outside the policy's answers"
        if found.exact
        else "the tokens differ outside the policy's answers: training would not see the template's text"
    )


def _preserving(preserves: bool) -> str:
    if preserves:
        return "yes: past answers appear in the template's text as they were sampled"
    return "no: the template shortens or changes past answers; training keeps them as they were sampled"


def _listed(tokens: dict[int, str]) -> str:
    shown = [f"{text} ({token})" for token, text in list(tokens.items())[:12]]
    return ", ".join([*shown, f"and {len(tokens) - 12} more"] if len(tokens) > 12 else shown) or "-"


def _say(text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)
