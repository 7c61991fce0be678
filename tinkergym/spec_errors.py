"""From pydantic's validation errors to one sentence that names the setting, the reason and what to do.

Client and gateway share it, so a wrong setting reads the same wherever it is caught.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tinkergym.algorithm_names import what_it_is
from tinkergym.errors import InvalidRequestError, PromptTooLongError
from tinkergym.setting_names import SERVICE_SETTINGS, meant, models_in
from tinkergym.wire import (
    LEAST_TEMPERATURE,
    MOST_TEMPERATURE,
    Choice,
    Cut,
    EnvironmentRef,
    JobSpec,
    PlayedSpec,
    Sampling,
    TrainingSpec,
)
from tinkergym.wire_jobs import AnyJobSpec, DistillationSpec, PreferenceSpec, SFTSpec, WrittenDataSpec

MOST_SHOWN = 4
"""Further errors of the same request are counted, not listed."""

MOST_EXPLAINED = 10_000
"""With more errors than this not even the first is looked for: pydantic only lists all of them at once."""

MOST_REPEATED = 80
"""Characters of a setting's name or value that an error repeats; names of ours are shorter."""

PATTERNS_IN_WORDS = {
    "on_failure": "must be drop, keep, or retry:1 to retry:99",
    "initial_policy": "must be a job's id, JOB or JOB@VERSION",
    "device": "must be auto, cpu, cuda, or cuda:N for GPU number N",
}
"""Settings of text in a certain form, which as a regular expression says little."""

JSON_TAGS = frozenset({"list", "dict", "str", "bool", "int", "float"})
"""What pydantic adds to the path of a `JsonValue` to say as which kind it tried to read it."""

REFUSED_IN_TRAINING = {
    "top_p": "draws from a part of the distribution, which the learner's logprobs would not be of",
    "top_k": "draws from a part of the distribution, which the learner's logprobs would not be of",
    "min_p": "draws from a part of the distribution, which the learner's logprobs would not be of",
    "structured": "draws from what a grammar allows, which the learner's logprobs would not be of",
}
"""Settings of sampling that others have: a job that trained with them would have wrong importance ratios."""

Model = TypeVar("Model", bound=BaseModel)


def parse_spec(settings: Mapping[str, Any]) -> JobSpec:
    """Check the settings of a job and fill in the defaults.

    Raises:
        InvalidRequestError: with the dotted name of the setting in `field`.
    """
    return parse(JobSpec, settings)


def parse_any_spec(settings: Mapping[str, Any], arguments: Sequence[str] = ()) -> AnyJobSpec:
    """Check the settings of a job of any kind; without a `kind` it is an RL job.

    Args:
        settings: By name, sections nested.
        arguments: Those of the function that was given the settings and that are none themselves: what is no
            setting may be a slip of one of them.

    Raises:
        InvalidRequestError: with the dotted name of the setting in `field`.
    """
    kinds: dict[object, type[AnyJobSpec]] = {
        "rl": JobSpec,
        "sft": SFTSpec,
        "preference": PreferenceSpec,
        "distillation": DistillationSpec,
    }
    kind = settings.get("kind", "rl")
    if not isinstance(kind, str) or kind not in kinds:
        hint = _close_value(kind, ", ".join(map(str, kinds)))
        raise InvalidRequestError(
            f"must be one of {', '.join(map(str, kinds))}, not {_short(kind)}", hint=hint, field="kind"
        )
    if arguments:
        _refuse_slips(settings, arguments, kinds[kind])
    return parse(kinds[kind], settings)


def _refuse_slips(settings: Mapping[str, Any], arguments: Sequence[str], model: type[AnyJobSpec]) -> None:
    for name in settings:
        if name in model.model_fields or name in SERVICE_SETTINGS:
            continue
        found = meant(name, (), model, model, arguments)
        if found and found[0] in arguments:
            raise InvalidRequestError("unknown setting", hint=f"did you mean {found[0]}?", field=_cut(name))


def refuse_environment_prompt(settings: Mapping[str, Any]) -> None:
    """Refuse what is not chosen but read from the environment.

    Raises:
        InvalidRequestError: it is among the settings.
    """
    if "environment_prompt" in settings:
        raise InvalidRequestError(
            "it is read from the environment",
            hint="set system_prompt, which replaces the environment's",
            field="environment_prompt",
        )


def environment_ref(env_id: str, kwargs: Mapping[str, Any]) -> EnvironmentRef:
    """Check the name of an environment and its arguments, which travel with a job and so must be JSON.

    Raises:
        InvalidRequestError: with the dotted name of the setting, as in a job, in `field`.
    """
    try:
        return parse(EnvironmentRef, {"id": env_id, "kwargs": kwargs})
    except InvalidRequestError as error:
        error.field = f"environment.{error.field}"
        raise


def require_cut(top_p: object, top_k: object) -> Cut:
    """Check what a script gave as `top_p` and `top_k`.

    Raises:
        InvalidRequestError: One of them is out of range; its name is in `field`.
    """
    for name, value in (("top_p", top_p), ("top_k", top_k)):
        if isinstance(value, bool | str):
            raise InvalidRequestError(f"must be a number, not {_short(value)}", field=name)
    return parse(Cut, {"top_p": top_p, "top_k": top_k})


def require_count(value: object, name: str) -> None:
    """Check what a script gave as a number of things, of which there must be some.

    Raises:
        InvalidRequestError: It is no whole number above 0.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidRequestError(f"must be a whole number above 0, not {_short(value)}", field=name)


def require_temperature(temperature: object) -> None:
    """Check what a script gave as the temperature of answers.

    Raises:
        InvalidRequestError: It is none.
    """
    is_number = isinstance(temperature, Real) and not isinstance(temperature, bool)
    value = float(temperature) if is_number else math.nan  # type: ignore[arg-type] # just looked at
    if not (value == 0 or LEAST_TEMPERATURE <= value <= MOST_TEMPERATURE):
        raise InvalidRequestError(
            f"must be a number, {LEAST_TEMPERATURE} to {MOST_TEMPERATURE} or 0, not {_short(temperature)}",
            hint="0 takes the likeliest token",
            field="temperature",
        )


def refuse_wide_context(spec: PlayedSpec, context_length: int) -> None:
    """Check that a job asks for no longer context than its model has.

    Raises:
        InvalidRequestError: it does.
    """
    most = spec.limits.max_context_tokens
    if most is not None and most > context_length:
        raise InvalidRequestError(
            f"the model {spec.model!r} has a context of {context_length} tokens, not {most}",
            hint="leave it out to use all of them, or choose a model with a longer context",
            field="limits.max_context_tokens",
        )


def nothing_left(spec: WrittenDataSpec, records: int) -> InvalidRequestError:
    """Say that a job holds all of its records out."""
    return InvalidRequestError(
        f"{spec.held_out:g} of {records} {'record' if records == 1 else 'records'} leaves none to train on",
        hint="set it lower, or measure with eval_data",
        field="held_out",
    )


def refuse_long_prompt(prompt_tokens: int, spec: PlayedSpec, context_length: int) -> None:
    """Check that a first prompt leaves room for the longest answer that the job allows.

    Raises:
        PromptTooLongError: it does not.
    """
    needed = prompt_tokens + spec.sampling.max_turn_tokens
    wants = f"a first prompt of {prompt_tokens} tokens and an answer of up to {spec.sampling.max_turn_tokens}"
    if needed > context_length:
        raise PromptTooLongError(
            f"{wants} do not fit into the {context_length} tokens of {spec.model!r}",
            hint="lower max_turn_tokens, shorten the prompt, or choose a model with a longer context",
            field="sampling.max_turn_tokens",
        )
    if needed > (spec.limits.max_context_tokens or needed):
        raise PromptTooLongError(
            f"{wants} do not fit into limits.max_context_tokens={spec.limits.max_context_tokens}",
            hint=f"set it to {needed} or more, lower max_turn_tokens, or shorten the prompt",
            field="limits.max_context_tokens",
        )


def parse(model: type[Model], settings: Mapping[str, Any]) -> Model:
    """Check `settings` against any model of the wire, with errors a person can act on.

    Raises:
        InvalidRequestError: with the dotted name of the setting in `field`.
    """
    try:
        return model.model_validate(_plain(settings))
    except ValidationError as error:
        raise explain(error, model) from None


def explain(error: ValidationError, model: type[BaseModel]) -> InvalidRequestError:
    """Say what is wrong with the input of `model`: the first error in full, the next few in brief.

    However many there are, only so many are explained.

    Args:
        error: What pydantic raised while validating `model`.
        model: The outermost model, whose field names give the close matches.
    """
    if error.error_count() > MOST_EXPLAINED:
        return InvalidRequestError(
            f"{error.error_count()} settings are wrong, too many to explain",
            hint="compare them with /v1/openapi.json",
        )
    details = error.errors(include_url=False, include_context=True)
    # To look for what an unknown name may stand for takes a millisecond.
    first, *others = [_explain_one(detail, model) for detail in details[: MOST_SHOWN + 1]]
    if not others:
        return first
    brief = [
        f"{other.field}: {other.message}" + (f", {other.hint}" if other.hint.startswith("did you") else "")
        for other in others
    ]
    if len(details) > 1 + len(others):
        brief.append(f"{len(details) - 1 - len(others)} more")
    hint = f"{first.hint}; " if first.hint else ""
    return InvalidRequestError(first.message, hint=f"{hint}also wrong: {'; '.join(brief)}", field=first.field)


def _explain_one(detail: ErrorDetails, model: type[BaseModel]) -> InvalidRequestError:
    path, candidates = _locate(detail["loc"], model)
    parent = candidates[0] if len(candidates) == 1 else None
    context, got, field, hint = detail.get("ctx", {}), detail["input"], ".".join(path), ""
    tag_field = str(context.get("discriminator", "kind")).strip("'")
    match detail["type"]:
        case "extra_forbidden":
            message, hint = "unknown setting", _known(path, parent, model) if parent else ""
            sampling = parent is Sampling or (parent is not None and issubclass(parent, TrainingSpec))
            if sampling and path[-1] in REFUSED_IN_TRAINING:
                message = f"is refused in training: it {REFUSED_IN_TRAINING[path[-1]]}"
                hint = "use temperature; policy.act and policy.evaluate take top_p, top_k and structured"
        case "string_pattern_mismatch" if path[-1] in PATTERNS_IN_WORDS:
            message = f"{PATTERNS_IN_WORDS[path[-1]]}, not {_short(got)}"
        case "missing":
            message = "is required and was not given"
        case "literal_error" | "enum":
            message = f"must be {context['expected']}, not {_short(got)}"
            hint = _close_value(got, context["expected"])
        case "union_tag_invalid":
            message = f"must be one of {context['expected_tags']}, not {context['tag']!r}"
            known = what_it_is(str(context["tag"])) if path == ["algorithm"] else ""
            hint = known or _close_value(context["tag"], context["expected_tags"])
            field = f"{field}.{tag_field}" if field else tag_field
        case "model_type" | "model_attributes_type" if all(issubclass(c, Choice) for c in candidates):
            known = what_it_is(str(got)) if path == ["algorithm"] else ""
            message, hint = f"cannot be {_short(got)}", known or _how_to_write(got, candidates)
        case "union_tag_not_found" if isinstance(got, type):
            message, hint = f"cannot be the class {got.__name__} itself", _how_to_write(got, candidates)
        case "union_tag_not_found":
            message = f"needs {tag_field!r} to say which one, got {_short(got)}"
        case "value_error":
            return _from_validator(detail["msg"].removeprefix("Value error, "), field, parent)
        case _:
            reason = detail["msg"].removeprefix("Input ").replace("should be", "must be", 1)
            message = f"{reason}, not {_short(got)}"
    return InvalidRequestError(message, hint=hint, field=field)


def _from_validator(message: str, field: str, parent: type[BaseModel] | None) -> InvalidRequestError:
    """Read our own validators' sentences: `<setting> <reason>; <what to do>`."""
    reason, _, hint = message.partition("; ")
    setting, _, rest = reason.partition(" ")
    if parent is not None and setting in parent.model_fields and rest:
        reason = rest
        if field.rpartition(".")[2] != setting:  # a validator of the field itself has it in the path
            field = f"{field}.{setting}" if field else setting
    return InvalidRequestError(reason, hint=hint, field=field)


def _locate(
    location: tuple[int | str, ...], model: type[BaseModel]
) -> tuple[list[str], list[type[BaseModel]]]:
    """Return the path in the user's words, without union tags, and the models that its last name can mean.

    Those are what the setting of this name holds, or if it holds no model, the one that it stands in.
    """
    path: list[str] = []
    candidates: list[type[BaseModel]] = [model]
    for part in location:
        tagged = [c for c in candidates if part in {*_tags(c), c.__name__}] if isinstance(part, str) else []
        if tagged and not (len(candidates) == 1 and part in candidates[0].model_fields):
            candidates = tagged  # pydantic puts the union's tag into the path; nobody writes it there
            continue
        if path[-2:-1] == ["kwargs"] and part in JSON_TAGS:
            continue
        path.append(_cut(str(part)))
        inner = [found for c in candidates if part in c.model_fields for found in models_in(c, str(part))]
        if inner:
            candidates = inner
    return path, candidates


def _tags(model: type[BaseModel]) -> list[str]:
    """Return the values of the fields that tell the members of a union apart (`kind`, `name`, `type`)."""
    fields = (field.annotation for field in model.model_fields.values())
    choices = (get_args(annotation) for annotation in fields if get_origin(annotation) is Literal)
    return [str(values[0]) for values in choices if len(values) == 1]  # more is a setting with a choice


def _known(path: Sequence[str], parent: type[BaseModel], model: type[BaseModel]) -> str:
    """Say which setting was meant, or else which there are."""
    *section, name = path
    written = ".".join(path)
    if written in SERVICE_SETTINGS and issubclass(model, TrainingSpec | Choice):
        return f"it is a setting of the service: tinkergym serve --set {written}=..."
    if found := meant(name, section, parent, model):
        return f"did you mean {' or '.join(found)}?"
    if issubclass(model, Choice):  # written down by itself, and the job has more
        beside = [place for place in meant(name, (), model, JobSpec) if not _holds(place, model)]
        if beside:
            return f"did you mean {beside[0]}, which stands beside it in a job?"
    if issubclass(model, TrainingSpec):
        close = difflib.get_close_matches(written, sorted(SERVICE_SETTINGS), n=1, cutoff=0.8)
        if close:
            return f"did you mean {close[0]}, a setting of the service: tinkergym serve --set {close[0]}=...?"
    return f"known settings: {', '.join(parent.model_fields)}"


def _holds(place: str, model: type[BaseModel]) -> bool:
    section = place.partition(".")[0]
    return model in models_in(JobSpec, section)


def _how_to_write(got: object, candidates: Sequence[type[BaseModel]]) -> str:
    """Say how a part of a job's settings is written, by the member of its union that was named if one was."""
    chosen = [c for c in candidates if got is c or str(got) in _tags(c)] or list(candidates)
    examples = [_example(c) for c in chosen]
    calls = [
        f"tg.{c.__name__}({', '.join(f'{field}={value!r}' for field, value in settings.items())})"
        for c, (_, settings) in zip(chosen, examples, strict=True)
    ]
    tag, settings = examples[0]
    return f"write {' or '.join(calls)}; in JSON {json.dumps(tag or settings)}"


def _example(model: type[BaseModel]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the field by which a union tells this model, if it does, and a setting of it, if it has any."""
    defaults = {field: info.default for field, info in model.model_fields.items()}
    tag = {field: value for field, value in defaults.items() if value in _tags(model)}
    return tag, dict([(field, value) for field, value in defaults.items() if field not in tag][:1])


def _close_value(got: object, choices: object) -> str:
    words = [word.strip("' ") for word in str(choices).replace(" or ", ",").split(",")]
    matches = difflib.get_close_matches(str(got), words, n=1, cutoff=0.6)
    return f"did you mean {matches[0]!r}?" if matches else ""


def _short(value: object) -> str:
    # Cut before it is written out, too: a value may be megabytes.
    if isinstance(value, str | bytes | list | tuple):
        value = value[:MOST_REPEATED]
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= MOST_REPEATED else f"{text[: MOST_REPEATED - 3]}..."


def _plain(value: Any) -> Any:
    """Turn models inside the settings into dicts, so that a subclass or a copy is checked as what it says."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
