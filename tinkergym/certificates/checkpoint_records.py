"""What in a bundle's checkpoints contradicts the facts."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, JsonValue, ValidationError

from tinkergym.certificates.archive import BundleFiles
from tinkergym.certificates.bundle import UNPACKED, checkpoint_folder
from tinkergym.certificates.document import refuse_repeated_names
from tinkergym.errors import TinkerGymError
from tinkergym.schema.certificate import BundledFile, CheckpointFacts, RunFacts
from tinkergym.schema.jobs.parts import LoRA
from tinkergym.schema.jobs.spec import STORED_SPEC, JobSpec
from tinkergym.schema.steering import settings_before

MANIFEST = "manifest.json"
_HEADER_BYTES = 8
_LONGEST_HEADER = 16 * 2**20


class _Manifest(BaseModel):
    """A checkpoint's manifest; it may be forged."""

    step: int
    policy_version: int
    adapter: JsonValue
    model_fingerprint: str
    weights_file: str
    weights_sha256: str
    files: dict[str, BundledFile]
    extra: dict[str, JsonValue]


def newest_checkpoints(facts: RunFacts) -> list[CheckpointFacts]:
    """Return the checkpoints whose files are in a bundle: the newest of each policy."""
    return list({one.agent: one for one in facts.checkpoints}.values())


def packed_files(one: CheckpointFacts) -> list[str]:
    """Return the names of a checkpoint's files in a bundle."""
    folder = checkpoint_folder(one.agent, one.view.step)
    return [f"{folder}/{name}" for name in one.view.files if name != UNPACKED]


def checkpoint_problems(facts: RunFacts, files: BundleFiles, damaged: set[str]) -> Iterator[str]:
    """Name the contradictions in the newest checkpoint of each policy."""
    for one in newest_checkpoints(facts):
        folder = checkpoint_folder(one.agent, one.view.step)
        name = f"{folder}/{MANIFEST}"
        if name in damaged or name not in files.names:
            continue
        body = files.body(name)
        try:
            manifest = _Manifest.model_validate_json(body)
        except ValidationError:
            yield f"{name}: it is not the manifest of a checkpoint"
            continue
        refuse_repeated_names(body, name)
        if files.sha256(name) != one.manifest_sha256:
            yield f"{name}: it is not the one that the service recorded"
        for problem in _of_manifest(facts, one, manifest):
            yield f"{name}: {problem}"
        yield from _of_files(one, folder, manifest, files, damaged)
        weights = f"{folder}/{manifest.weights_file}"
        if weights in files.names and weights not in damaged:
            yield from _of_tensors(facts, one.agent, weights, files)


def _of_manifest(facts: RunFacts, one: CheckpointFacts, manifest: _Manifest) -> Iterator[str]:
    job, view = facts.job, one.view
    if (manifest.step, manifest.policy_version) != (view.step, view.policy_version):
        yield f"it is of step {manifest.step} and version {manifest.policy_version}"
    if manifest.extra.get("job_id") != job.job_id:
        yield "it is another job's"
    if not _same_settings(facts, one.agent, manifest.extra.get("spec")):
        yield "it was trained with other settings than the job's"
    own = job.spec.for_agent(one.agent)
    if manifest.adapter != own.adapter.model_dump(mode="json"):
        yield "its adapter has other settings than the job's"
    # The fingerprint in the facts is of the job's own base model.
    fingerprints = {attempt.model_fingerprint for attempt in facts.attempts} - {""}
    if own.model == job.spec.model and fingerprints and fingerprints != {manifest.model_fingerprint}:
        yield "its base model is not that of the job's attempts"
    published = {p.weights_sha256 for p in facts.publishes if p.agent == one.agent}
    same = {
        p.weights_sha256 for p in facts.publishes if (p.agent, p.version) == (one.agent, view.policy_version)
    }
    # A user's own loop may train on after a publish, and save.
    if not job.spec.by_calls and manifest.weights_sha256 not in (same or published):
        yield "its weights were never published"


def _same_settings(facts: RunFacts, agent: str, written: JsonValue) -> bool:
    """Whether a manifest's settings are those with which the job started."""
    try:
        found: JobSpec = STORED_SPEC.validate_python(written)
        began = settings_before(facts.job.spec, facts.job.updates).for_agent(agent)
    except (TinkerGymError, LookupError, TypeError, ValueError):  # The changes may be invented.
        return False
    ours, theirs = began.model_dump(mode="json"), found.model_dump(mode="json")
    if any("." in change.name for update in facts.job.updates for change in update.changes):
        # A policy has had settings of its own since a change of them; `for_agent` resolves both.
        ours.pop("agents"), theirs.pop("agents")
    return bool(ours == theirs)


def _of_files(
    one: CheckpointFacts, folder: str, manifest: _Manifest, files: BundleFiles, damaged: set[str]
) -> Iterator[str]:
    wanted = {name: entry.bytes for name, entry in manifest.files.items()} | {
        MANIFEST: files.size(f"{folder}/{MANIFEST}")
    }
    if wanted != one.view.files:
        yield f"{folder}/{MANIFEST}: its files are not those that the service recorded"
    weights = manifest.files.get(manifest.weights_file)
    if weights is None or weights.sha256 != one.view.sha256:
        yield f"{folder}/{manifest.weights_file}: the service recorded no checkpoint with these weights"
    for file, entry in manifest.files.items():
        name = f"{folder}/{file}"
        if name in damaged:
            yield f"{name}: its bytes differ from those of the trained policy"
        elif name in files.names and (files.sha256(name), files.size(name)) != (entry.sha256, entry.bytes):
            yield f"{name}: it differs from the file in the checkpoint's manifest"


def _of_tensors(facts: RunFacts, agent: str, name: str, files: BundleFiles) -> Iterator[str]:
    """Compare the number of B matrices in an adapter's file."""
    if not isinstance(facts.job.spec.adapter_of(agent), LoRA):
        return
    header = _header(files, name)
    tensors = sum(".lora_B." in tensor for tensor in header)
    if any(one.tensors != tensors for one in facts.adapters if one.agent == agent):
        yield f"{name}: it has {tensors} B matrices, the measured adapter another number"


def _header(files: BundleFiles, name: str) -> Mapping[str, Any]:
    """Return the header of a safetensors file; empty if it has none."""
    begin = files.head(name, _HEADER_BYTES)
    if len(begin) < _HEADER_BYTES:
        return {}
    (size,) = struct.unpack("<Q", begin)
    if size > min(_LONGEST_HEADER, files.size(name)):
        return {}
    try:
        header = json.loads(files.head(name, _HEADER_BYTES + size)[_HEADER_BYTES:])
    except (ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}
