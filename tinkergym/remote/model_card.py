"""The model card of an export: `README.md`, as the Hugging Face hub shows it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tinkergym.schema.certificate import Certificate
from tinkergym.schema.events import CheckpointView, EvaluationEvent
from tinkergym.schema.jobs.parts import LoRA
from tinkergym.schema.jobs.spec import JobSpec

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}")
_IN_CACHE = re.compile(r"(?:^|/)models--([\w.-]+?)--([\w.-]+)/snapshots/([0-9a-f]{40})/?$")
"""Where the hub's client keeps a model."""
_LOAD_ADAPTER = """from peft import AutoPeftModelForCausalLM

model = AutoPeftModelForCausalLM.from_pretrained("THIS_REPOSITORY")"""
_LOAD_MODEL = """from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("THIS_REPOSITORY")"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """What a card says about an export."""

    job_id: str
    spec: JobSpec
    """Of the exported policy."""
    checkpoint: CheckpointView
    base: str
    """The base model: its hub id where it has one, otherwise its name in the service."""
    base_sha256: str
    """Identifies its weights; empty if unknown."""
    is_adapter: bool
    evaluations: Sequence[EvaluationEvent]
    packs: Mapping[str, str]
    """The versions of the packs that were used."""
    certificate: Certificate | None
    """None if the service has no facts about the job."""


def hub_base(path: str, model: str) -> tuple[str, str | None]:
    """Return a base model's hub id, or its name in the service if it has none, and its revision if known.

    Args:
        path: Where the service had it.
        model: Its name in the job.
    """
    if cached := _IN_CACHE.search(path):
        return f"{cached[1]}/{cached[2]}", cached[3]
    return model, None


def is_hub_id(name: str) -> bool:
    """Whether a model's name can be an id of the hub."""
    return _HUB_ID.fullmatch(name) is not None


def model_card(facts: CardFacts) -> str:
    """Return the card, in Markdown."""
    adapter = facts.spec.adapter
    kind = f"LoRA adapter of rank {adapter.rank} for" if isinstance(adapter, LoRA) else "model trained from"
    if isinstance(adapter, LoRA) and not facts.is_adapter:
        kind = f"model with a merged LoRA adapter of rank {adapter.rank}, from"
    base = (
        f"[{facts.base}](https://huggingface.co/{facts.base})" if is_hub_id(facts.base) else f"`{facts.base}`"
    )
    load = _LOAD_ADAPTER if facts.is_adapter else _LOAD_MODEL
    parts = [
        _head(facts),
        f"# {_plain(facts.spec.name) or facts.job_id}",
        f"A {kind} {base}, trained with tinkergym.",
        f"```python\n{load}\n```",
        "`tinkergym.json` has the system prompt and the other settings with which it was trained to answer.",
        "## Training",
        _table(("", ""), _training(facts)),
        "## Evaluation",
        _evaluation(facts),
        "## Certificate",
        _certificate(facts),
    ]
    return "\n\n".join(parts) + "\n"


def _head(facts: CardFacts) -> str:
    library = "peft" if facts.is_adapter else "transformers"
    said = {
        "library_name": library,
        "pipeline_tag": "text-generation",
        "tags": ["tinkergym", facts.spec.kind],
    }
    if is_hub_id(facts.base):
        said = {"base_model": facts.base, **said}
    # JSON is YAML.
    lines = [f"{name}: {json.dumps(value)}" for name, value in said.items()]
    return "\n".join(["---", *lines, "---"])


def _training(facts: CardFacts) -> Iterator[tuple[str, str]]:
    spec, checkpoint = facts.spec, facts.checkpoint
    yield "job", f"`{facts.job_id}`, version {checkpoint.policy_version}, step {checkpoint.step}"
    yield "kind", spec.kind
    yield "base model", f"`{facts.base}`" + (f", weights `{facts.base_sha256}`" if facts.base_sha256 else "")
    if spec.initial_policy:
        yield "began from", f"`{spec.initial_policy}`"
    for setting, sha256 in spec.datasets.items():
        yield setting, f"SHA-256 `{sha256}`"
    if played := spec.played:
        for name, environment in played.own_environments.items():
            sha256 = played.environment_data.get(name, "")
            yield (
                "environment",
                f"`{environment.id}`" + (f", tasks with SHA-256 `{sha256}`" if sha256 else ""),
            )
    for pack, version in facts.packs.items():
        yield "pack", f"`{pack}` {version}"
    yield "seed", str(spec.seed)
    yield "weights", f"SHA-256 `{checkpoint.sha256}` (as trained)"


def _evaluation(facts: CardFacts) -> str:
    agent, version = facts.checkpoint.agent, facts.checkpoint.policy_version
    own = [one for one in facts.evaluations if one.agent == agent and one.policy_version == version]
    if not own:
        return "This version was not evaluated during training."
    rows = [
        (
            one.name,
            "-" if one.mean is None else f"{one.mean:.4g}",
            "unknown" if one.low is None or one.high is None else f"{one.low:.4g} to {one.high:.4g}",
            str(one.episodes - one.failed_episodes),
            str(one.failed_episodes),
            "unknown" if one.overlap is None else f"{one.overlap:.1%}",
        )
        for one in own
    ]
    head = ("evaluation", "mean return", "95 % interval", "episodes", "failed", "tasks also trained on")
    return _table(head, rows)


def _certificate(facts: CardFacts) -> str:
    if facts.certificate is None:
        return "The service has no facts about this job."
    verdicts = Counter(check.verdict for check in facts.certificate.checks)
    found = ", ".join(f"{verdict.replace('_', ' ')}: {count}" for verdict, count in sorted(verdicts.items()))
    return f"The checks in `certificate.json`: {found}. `tinkergym verify certificate.json` repeats them."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_plain(cell) for cell in line)} |" for line in lines)


def _plain(text: str) -> str:
    """Return text that stays within a cell or a heading."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
