"""A refusal is data, from the check that finds a wrong setting to the person who reads about it.

Nothing parses its text: `field`, `reason`, `hint` and `code` stay apart all the way. Pydantic's validation
errors become one error of ours: which setting, why, and the nearest valid name.
"""

from __future__ import annotations

import difflib
import reprlib
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.ids import HOW_TO_WRITE_POLICIES, WHOSE_POLICY

MOST_SHOWN = 5
"""Errors that are explained in full; further ones of the same request are counted."""

MOST_EXPLAINED = 10_000
"""With more errors than this, none is explained."""

MOST_REPEATED = 80
"""Characters of a name or a value that an error repeats."""

OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "lr": ("learning_rate",),
    "lr_scheduler_type": ("lr_schedule",),
    "num_generations": ("group_size",),
    "r": ("rank",),
    "lora_r": ("rank",),
    "lora_rank": ("rank",),
    "lora_alpha": ("alpha",),
    "use_rslora": ("rslora",),
    "lora_target_modules": ("target_modules",),
    "betas": ("beta1", "optimizer"),
    "adam_beta1": ("beta1", "optimizer"),
    "adam_beta2": ("beta2", "optimizer"),
    "adam_epsilon": ("eps", "optimizer"),
    "optim": ("optimizer",),
    "optim_bits": ("state_bits",),
    "beta": ("kl_coefficient",),
    "kl_coef": ("kl_coefficient",),
    "epsilon": ("clip_low",),
    "epsilon_high": ("clip_high",),
    "num_iterations": ("updates_per_step",),
    "batch_size": ("groups_per_step", "episodes_per_step"),
    "per_device_train_batch_size": ("batch_size", "groups_per_step", "episodes_per_step"),
    "max_tokens": ("max_turn_tokens",),
    "max_new_tokens": ("max_turn_tokens",),
    "max_completion_length": ("max_turn_tokens",),
    "num_train_epochs": ("epochs", "steps"),
    "num_epochs": ("epochs", "steps"),
    "epoch": ("epochs", "steps"),
    "epochs": ("steps",),
    "max_steps": ("steps",),
    "kwargs": ("env_kwargs",),
    "env_args": ("env_kwargs",),
    "env_config": ("env_kwargs",),
    "environment_kwargs": ("env_kwargs",),
}
"""Names of settings in other libraries, and ours. The first one that the model has is suggested."""

NOT_IN_TRAINING = {
    **dict.fromkeys(
        ("top_p", "top_k", "min_p", "structured"),
        "training samples from the whole distribution, as importance ratios require; use temperature; "
        "policy.act and policy.evaluate take top_p, top_k and structured",
    ),
    **dict.fromkeys(
        ("dropout", "lora_dropout"),
        "dropout would make the learner's logprobs differ from the engine's and distort the importance "
        "ratios; "
        "use weight_decay, a lower rank or fewer target_modules",
    ),
    **dict.fromkeys(
        ("modules_to_save", "bias", "lora_bias", "use_dora"),
        "vLLM only applies low-rank adapters; train all parameters with adapter=tg.FullParameters()",
    ),
}
"""Settings of other libraries that cannot take effect here, and why."""

_JSON_TAGS = frozenset({"list", "dict", "str", "bool", "int", "float"})
"""What pydantic adds to the path inside a `JsonValue`."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = MOST_REPEATED


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a setting is rejected."""

    field: str
    """The dotted name of the setting within what was checked; empty for the whole of it."""
    reason: str
    hint: str = ""
    """What to do instead."""
    code: str = "invalid"
    """For programs; it stays when the wording changes."""

    def in_validator(self) -> PydanticCustomError:
        """Return this as what a validator raises; `explain` takes it out again."""
        return PydanticCustomError(self.code, "{reason}", {"reason": self.reason, "refusal": self})

    def error(self, kind: type[InvalidRequestError] = InvalidRequestError) -> InvalidRequestError:
        """Return this as the error that a caller sees."""
        return kind(self.reason, hint=self.hint, field=self.field, code=self.code)


def no_effect(field: str, wanted: str) -> Refusal:
    """Return the refusal of a setting that only takes effect with another one."""
    return Refusal(field, f"only takes effect with {wanted}", "set that too, or leave it out", "no_effect")


def explain(
    error: ValidationError, model: type[BaseModel], arguments: Sequence[str] = ()
) -> InvalidRequestError:
    """Return the first of pydantic's errors in full, with the next few in brief in the hint.

    Args:
        error: What pydantic raised while validating `model`.
        model: The outermost model, whose field names give the nearest valid name.
        arguments: Further valid names at the outermost level.
    """
    count = error.error_count()
    if count > MOST_EXPLAINED:
        return InvalidRequestError(
            f"{count} settings are invalid, too many to explain",
            hint="compare them with /v1/openapi.json",
            field="settings",
        )
    # A missing setting is often present under a wrong name, so it comes last.
    details = sorted(_of_one_kind(error.errors(include_url=False)), key=lambda one: one["type"] == "missing")
    first, *others = [_explained(detail, model, arguments) for detail in details[:MOST_SHOWN]]
    if others:
        brief = [str(other) for other in others] + [f"{count - MOST_SHOWN} more"] * (count > MOST_SHOWN)
        first.hint = "; ".join([first.hint] * bool(first.hint) + [f"also invalid: {', '.join(brief)}"])
    return first


def _of_one_kind(details: Iterable[ErrorDetails]) -> list[ErrorDetails]:
    """Return the errors, for a value of several kinds only those of the kind that it is nearest to."""
    found: list[ErrorDetails] = []
    unions: dict[tuple[int | str, ...], dict[int | str, list[ErrorDetails]]] = {}
    for detail in details:
        location = detail["loc"]
        at = next((place for place, part in enumerate(location) if _is_kind(part)), None)
        if at is None:
            found.append(detail)
        else:
            unions.setdefault(location[:at], {}).setdefault(location[at], []).append(detail)
    for base, kinds in unions.items():
        # Names of the user's can look like kinds, but only like simple ones.
        is_union = not _JSON_TAGS.issuperset(kinds)
        distance = partial(_distance, len(base) + 1)
        found += min(kinds.values(), key=distance) if is_union else chain(*kinds.values())
    return found


def _distance(depth: int, errors: Sequence[ErrorDetails]) -> tuple[bool, int, int]:
    """Return how far a value is from a kind: whether it is of another one, or its parts are."""
    wrong = [error for error in errors if error["type"].endswith(("_type", "_parsing"))]
    return any(len(error["loc"]) == depth for error in wrong), len(wrong), len(errors)


_KINDS = ("constrained-", "list[", "tuple[", "json-or-python[")


def _is_kind(part: int | str) -> bool:
    """Whether a part of pydantic's location says which kind of value it tried."""
    return isinstance(part, str) and (part in _JSON_TAGS or part.startswith(_KINDS))


_VANISHING = 1e-20
"""A bound below this only says that a number must be above 0."""

_IN_OUR_WORDS = {
    "dict_type": "must be a table of names and values",
    "list_type": "must be a list",
    "string_type": "must be text",
    "tuple_type": "must be a list",
}
"""By pydantic's type of error."""


def _explained(detail: ErrorDetails, model: type[BaseModel], arguments: Sequence[str]) -> InvalidRequestError:
    path, models = _located(detail["loc"], model)
    context, got = detail.get("ctx", {}), detail["input"]
    message, hint = f"{_IN_OUR_WORDS.get(detail['type'], detail['msg'])}, got {_SHORT.repr(got)}", ""
    match detail["type"]:
        case "extra_forbidden":
            message, hint = "unknown setting", _nearest(path, models, model, arguments)
        case "missing":
            message, hint = detail["msg"], "add it"
        case "string_pattern_mismatch" if WHOSE_POLICY in context["pattern"]:
            message, hint = f"{_SHORT.repr(got)} is not a valid policy reference", HOW_TO_WRITE_POLICIES
        case "greater_than_equal" if path[-1:] == ["temperature"] and context["ge"] > 0:
            hint = "policy.act and policy.evaluate take 0, for the likeliest token; training cannot"
        case "greater_than_equal" if 0 < context["ge"] < _VANISHING:
            message = f"Input should be greater than 0, at least {context['ge']:g}, got {_SHORT.repr(got)}"
        case "literal_error":
            fields = [m.model_fields[path[-1]] for m in models if path[-1:] and path[-1] in m.model_fields]
            hint = nearest_value(got, [value for field in fields for value in _literals(field.annotation)])
        case "model_type" | "model_attributes_type" | "union_tag_not_found" if models != [model]:
            message = f"cannot be {_SHORT.repr(got)}"
            if detail["type"] == "union_tag_not_found":
                message = f"needs {context['discriminator']}, got {_SHORT.repr(got)}"
            hint = f"write {' or '.join(f'{m.__name__}(...)' for m in models)}"
        case "union_tag_invalid":
            message = f"{_SHORT.repr(context['tag'])} is not one of {context['expected_tags']}"
            path.append(str(context["discriminator"]).strip("'"))
            tags = context.get("tags") or [tag for m in models for tag in _tags(m) if tag != m.__name__]
            hint = _nearest_tag(path, str(context["tag"]), models, tags)
            hint = hint or context.get("hint", "")
        case "value_error":  # Raised outside this package, such as by a type that pydantic knows.
            message = str(context["error"])
        case _ if isinstance(refusal := context.get("refusal"), Refusal):
            message, hint = refusal.reason, refusal.hint
            path += [refusal.field] * bool(refusal.field)
    return Refusal(".".join(path), message, hint or _usual(path, models), code=detail["type"]).error()


def _usual(path: Sequence[str], models: Iterable[type[BaseModel]]) -> str:
    """Suggest to leave a setting out, if it has a default."""
    known = [field for m in models if path and (field := m.model_fields.get(path[-1])) is not None]
    if not known or known[0].is_required():
        return "correct it"
    default = known[0].get_default()
    simple = isinstance(default, bool | int | float | str) and default != ""
    return f"correct it, or leave it out for the default{f', {default!r}' if simple else ''}"


def models_in(model: type[BaseModel], field: str) -> list[type[BaseModel]]:
    """Return the models that a field can hold; several for a union."""
    known = model.model_fields[field]
    return list(
        dict.fromkeys(found for part in (known.annotation, *known.metadata) for found in _models(part))
    )


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif hasattr(annotation, "members"):  # Of a union to which packs add.
        yield from annotation.members()
    elif get_origin(annotation) in {Union, types.UnionType, Annotated, list, dict}:
        for part in get_args(annotation):
            yield from _models(part)


def _located(location: Iterable[int | str], root: type[BaseModel]) -> tuple[list[str], list[type[BaseModel]]]:
    """Return pydantic's location without the tags of unions, and the models on its path."""
    path: list[str] = []
    models = [root]
    by_name = False
    for part in location:
        # A name of the user's in a mapping, such as an agent's, is no tag.
        tagged = [m for m in models if part in _tags(m)] if len(models) > 1 and not by_name else []
        was_by_name, by_name = by_name, any(_is_mapping(m, part) for m in models)
        if tagged:
            models = tagged
        elif not (_is_kind(part) and ("kwargs" in path[:-1] or (path and not was_by_name))):
            text = str(part)
            path.append(text if len(text) <= MOST_REPEATED else f"{text[: MOST_REPEATED - 3]}...")
            inner = [found for m in models if text in m.model_fields for found in models_in(m, text)]
            models = inner or models
    return path, models


def _is_mapping(model: type[BaseModel], field: int | str) -> bool:
    known = model.model_fields.get(str(field))
    return known is not None and get_origin(known.annotation) is dict


def _tags(model: type[BaseModel]) -> set[Any]:
    """Return what distinguishes this member of a union from the others: its fields with only one value."""
    values = [get_args(field.annotation) for field in model.model_fields.values() if _is_literal(field)]
    return {model.__name__, *(value[0] for value in values if len(value) == 1)}


def _is_literal(field: Any) -> bool:
    return get_origin(field.annotation) is Literal


def _nearest(
    path: Sequence[str], models: list[type[BaseModel]], root: type[BaseModel], arguments: Sequence[str]
) -> str:
    """Suggest a setting of the same section or of another one; otherwise list the section's."""
    *section, name = path
    if name in NOT_IN_TRAINING:
        return NOT_IN_TRAINING[name]
    own = {field: ".".join((*section, field)) for m in models for field in m.model_fields}
    if not section:
        own |= {argument: argument for argument in arguments}
    elsewhere = {leaf: place for leaf, place in _places(root) if place != ".".join(path)}
    for places in (own, elsewhere):  # Known synonyms come before similar names.
        if exact := [other for other in (name, *OTHER_NAMES.get(name, ())) if other in places]:
            return f"did you mean {places[exact[0]]}?"
    # A typing error in another section's setting is nearer than a setting here that only begins alike.
    for places, likeness in ((own, 0.8), (elsewhere, 0.8), (own, 0.6)):
        if close := difflib.get_close_matches(name, places, n=1, cutoff=likeness):
            return f"did you mean {places[close[0]]}?"
    return f"known settings: {', '.join(own)}"


def _places(root: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield the settings of each section by their dotted names; for a union, those of its default."""
    for name, field in root.model_fields.items():
        if get_origin(field.annotation) in {list, dict}:
            continue  # Their members have no dotted names.
        chosen = [m for m in models_in(root, name) if type(field.default) is m] or models_in(root, name)
        for inner in chosen[0].model_fields if chosen else ():
            yield inner, f"{name}.{inner}"


def _literals(annotation: object) -> Iterator[object]:
    """Yield the values that an annotation lists."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from _literals(part)


def _nearest_tag(path: Sequence[str], tag: str, models: list[type[BaseModel]], tags: Iterable[object]) -> str:
    for name, field in models[0].model_fields.items():  # For example a loss given as the algorithm.
        if _is_literal(field) and tag.lower() in get_args(field.annotation):
            return f"did you mean {'.'.join((*path[:-1], name))}={tag.lower()!r}?"
    return nearest_value(tag, tags)


def nearest_value(got: object, choices: Iterable[object]) -> str:
    """Suggest one of the possible values; empty if none is similar."""
    close = difflib.get_close_matches(str(got)[:MOST_REPEATED], map(str, choices), n=1)
    return f"did you mean {close[0]!r}?" if close else ""
