"""Templates and model files that users name, read in limited children of this module's program.

A template or a file from anyone can take any time to read, and Python's lock with it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from backend.catalog.adapter_files import SentAdapter, WrittenAdapter, write_adapter
from backend.catalog.model_check import MOST_SCANNED_BYTES, refuse_unfit
from backend.catalog.models import ModelFacts, load_renderer_bundle, read_model_facts
from backend.catalog.template_probe import probe_template
from backend.processes.limited_child import ChildLimitError, ChildLimits, LimitedChild, answer_questions
from tinkergym.errors import (
    ServiceUnavailableError,
    TemplateError,
    TinkerGymError,
    UnknownModelError,
    from_wire,
)
from tinkergym.schema.adapter_upload import refused
from tinkergym.schema.views import RendererBundle

# The largest known template takes 0.2 s, and a folder of 100,000 tensors 3 s.
_OF_TEMPLATE = ChildLimits(cpu_seconds=2, memory_bytes=2**29, wall_seconds=60.0)
_OF_MODEL = ChildLimits(cpu_seconds=30, memory_bytes=2**32, wall_seconds=120.0)


class Reads:
    """What a catalog reads of templates and models, in this process."""

    def probe(
        self,
        template: str,
        special_tokens: Mapping[str, str],
        specials: Mapping[str, int],
        named: Collection[int],
    ) -> tuple[list[int], list[str]]:
        """Do what `probe_template` does."""
        return probe_template(template, special_tokens, specials, named)

    def renderer(self, model: str, directory: Path, chat_template: str) -> RendererBundle:
        """Do what `load_renderer_bundle` does."""
        return load_renderer_bundle(model, directory, chat_template)

    def facts(self, directory: Path) -> ModelFacts:
        """Do what `read_model_facts` does."""
        return read_model_facts(directory)

    def refuse_unfit(self, model: str, directory: Path) -> None:
        """Refuse a model that cannot be trained, as far as its files show."""
        refuse_unfit(model, directory, most_scanned_bytes=MOST_SCANNED_BYTES)

    def adapter(self, directory: Path, sent: SentAdapter, out: Path) -> WrittenAdapter:
        """Do what `write_adapter` does, for a model in `directory`."""
        return write_adapter(sent, directory, out)


class LimitedReads(Reads):
    """The same in children, one question to each at a time. Thread-safe; must be closed.

    Everything also raises `ServiceUnavailableError`: the machine is too busy.
    """

    def __init__(self, of_template: ChildLimits = _OF_TEMPLATE) -> None:
        self._templates = LimitedChild("backend.catalog.limited_reads", of_template)
        self._models = LimitedChild("backend.catalog.limited_reads", _OF_MODEL)

    def probe(
        self,
        template: str,
        special_tokens: Mapping[str, str],
        specials: Mapping[str, int],
        named: Collection[int],
    ) -> tuple[list[int], list[str]]:
        """Do what `probe_template` does; a template that exceeds a limit of the child is refused."""
        asked = [template, dict(special_tokens), dict(specials), list(named)]
        stop_ids, names = _asked(self._templates, "probe", asked, _too_costly)
        return stop_ids, names

    def renderer(self, model: str, directory: Path, chat_template: str) -> RendererBundle:
        """Do what `load_renderer_bundle` does; files that exceed a limit of the child are refused."""
        found = _asked(self._models, "renderer", [model, str(directory), chat_template], _unreadable)
        return RendererBundle.model_validate(found)

    def facts(self, directory: Path) -> ModelFacts:
        """Do what `read_model_facts` does; files that exceed a limit of the child are refused."""
        found = _asked(self._models, "facts", [str(directory)], _unreadable)
        return ModelFacts(**{**found, "directory": directory, "matrices": frozenset(found["matrices"])})

    def refuse_unfit(self, model: str, directory: Path) -> None:
        """Refuse a model that cannot be trained, or whose files exceed a limit of the child."""
        _asked(self._models, "fit", [model, str(directory)], _unreadable)

    def adapter(self, directory: Path, sent: SentAdapter, out: Path) -> WrittenAdapter:
        """Do what `write_adapter` does; files that exceed a limit of the child are refused."""
        asked = [dataclasses.asdict(sent) | {"file": str(sent.file)}, str(directory), str(out)]
        return WrittenAdapter(**_asked(self._models, "adapter", asked, _unreadable_adapter))

    def close(self) -> None:
        """End the children."""
        self._templates.close()
        self._models.close()


def _too_costly(limit: str) -> TinkerGymError:
    return TemplateError(
        f"compiling and trying the chat template was ended by a limit of the service ({limit})",
        hint="use a shorter template, or the model's own",
    )


def _unreadable(limit: str) -> TinkerGymError:
    return UnknownModelError(
        f"reading the model's files was ended by a limit of the service ({limit})",
        hint="use the model's original files, or ask the operator to offer it in `models`",
        field="model",
    )


def _unreadable_adapter(limit: str) -> TinkerGymError:
    return refused(f"reading the adapter was ended by a limit of the service ({limit})", "use a smaller one")


def _asked(
    child: LimitedChild, call: str, arguments: list[Any], refusal: Callable[[str], TinkerGymError]
) -> Any:
    try:
        answer = json.loads(child.ask(json.dumps([call, arguments]).encode()))
    except ChildLimitError as error:
        if error.limit == "time":
            raise ServiceUnavailableError(
                "the service did not read it in time, because the machine is busy", hint="try again"
            ) from error
        raise refusal(error.limit) from error
    if "error" in answer:
        raise from_wire(answer["error"])
    return answer["found"]


def _answer(question: bytes) -> bytes:
    call, arguments = json.loads(question)
    try:
        return json.dumps({"found": _CALLS[call](*arguments)}).encode()
    except TinkerGymError as error:
        return json.dumps({"error": error.to_wire()}).encode()


def _facts(directory: str) -> dict[str, Any]:
    found = dataclasses.asdict(read_model_facts(Path(directory)))
    return {**found, "directory": directory, "matrices": sorted(found["matrices"])}


_CALLS: Mapping[str, Callable[..., Any]] = {
    "probe": probe_template,
    "renderer": lambda model, directory, template: (
        Reads().renderer(model, Path(directory), template).model_dump()
    ),
    "facts": _facts,
    "fit": lambda model, directory: Reads().refuse_unfit(model, Path(directory)),
    "adapter": lambda sent, directory, out: dataclasses.asdict(
        write_adapter(SentAdapter(**{**sent, "file": Path(sent["file"])}), Path(directory), Path(out))
    ),
}


def main() -> None:
    """Answer questions until there are no more."""
    answer_questions(_answer)


if __name__ == "__main__":
    main()
