"""Export a trained policy as files that transformers and PEFT load without tinkergym.

Downloads a checkpoint's weights, checks each file's SHA-256, adds the tokenizer, and moves the complete
folder into place. An adapter is merged into its base model by a program of the service, which has torch.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkergym.agent.document_marks import template_text_of, tokenizer_of
from tinkergym.agent.template_variables import with_defaults
from tinkergym.basics.written_files import writing_to
from tinkergym.certificates.checks import certify
from tinkergym.errors import (
    CheckpointCorruptError,
    ConflictError,
    InternalServiceError,
    InvalidRequestError,
    InvalidToolError,
    MissingExtraError,
    NotFoundError,
    TinkerGymError,
    from_wire,
)
from tinkergym.remote.api import Api
from tinkergym.remote.hub_push import push_folder
from tinkergym.remote.model_card import CardFacts, hub_base, is_hub_id, model_card
from tinkergym.rollout.table_tools import with_offer
from tinkergym.schema.events import CheckpointView
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.training_spec import TrainingSpec
from tinkergym.schema.views import EXPORT_FILE, RendererBundle

_MANIFEST = "manifest.json"
_NOT_EXPORTED = frozenset({_MANIFEST, "optimizer.safetensors", "value_head.safetensors"})
_ADAPTER_FILE = "adapter_model.safetensors"
_CONFIG_FILE = "adapter_config.json"
_MERGE_PROGRAM = "backend.learner.merging"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The files of an export."""

    folder: Path
    policy_version: int
    is_adapter: bool
    """Whether it is an adapter that needs its base model, or a whole model."""
    bytes: int
    without_tokenizer: str = ""
    """Why the tokenizer is missing, if it is."""
    without_tools: str = ""
    """Why the system prompt in `tinkergym.json` lacks the description of the policy's tools, if it does."""

    def push_to_hub(self, repository: str, *, private: bool = True, token: str | None = None) -> str:
        """Upload the folder to the Hugging Face hub, and return the commit's URL.

        Args:
            repository: `owner/name`; it is created if it does not exist. Other files in it are removed.
            private: Whether a new repository is private.
            token: None takes the one of `hf auth login`, or HF_TOKEN.

        Raises:
            InvalidRequestError: The hub refused it, or cannot be reached. The folder stays.
        """
        return push_folder(self.folder, repository, private=private, token=token)


def export_policy(
    api: Api,
    job_id: str,
    out: Path,
    *,
    version: int | None = None,
    merge: bool = False,
    base: str | None = None,
    agent: str = "",
) -> Exported:
    """Write a policy to a folder that does not exist yet.

    Args:
        api: The service's API.
        job_id: The job that trained it.
        out: The folder; it appears when it is complete.
        version: A version with a checkpoint; None means the newest.
        merge: Write a whole model instead of an adapter. Needs the extra `backend` here.
        base: For `merge`: directory or hub id of the base model, if this machine has it elsewhere than the
            service has.
        agent: The policy's agent, if the job trains several.

    Raises:
        InvalidRequestError: `out` cannot be written, or `base` is given although nothing is merged.
        ConflictError: `out` exists, or `base` is not the model that the adapter was trained on.
        NotFoundError: There is no such checkpoint.
        CheckpointCorruptError: A downloaded file has a wrong hash.
        MissingExtraError: `merge` without torch, transformers and PEFT.
    """
    if merge:
        # Before a download of gigabytes that could not be used.
        _require_backend()
    with _appearing(out) as folder:
        checkpoint = _checkpoint(api, job_id, version, agent)
        merges = merge and _ADAPTER_FILE in checkpoint.files
        if base and not merges:
            why = f"{job_id} trained all parameters" if merge else "without merge an adapter stays one"
            raise InvalidRequestError(
                f"nothing is merged into {base!r}: {why}", hint="leave it out", field="base"
            )
        spec = api.job(job_id).spec.for_agent(checkpoint.agent)
        model = spec.model
        manifest = _download(api, job_id, checkpoint, folder)
        if merges:
            _merge(folder, model, base, str(manifest.get("model_fingerprint", "")))
        without_tokenizer, base_sha256 = _add_tokenizer(api, spec, folder)
        without_tools = ""
        origin: dict[str, Any] = {
            "job_id": job_id,
            "policy_version": checkpoint.policy_version,
            "base_model": model,
            "base_sha256": base_sha256,
            "template_variables": spec.template_variables,
            "template_date": spec.template_date,
        }
        if played := spec.played:
            # Other programs need this to prompt the policy as in training.
            prompt, tools, without_tools = _prompt_of(played, checkpoint.agent)
            origin["template_variables"] = {**played.environment_variables, **spec.template_variables}
            origin |= {"system_prompt": prompt, "reasoning": played.reasoning, **tools}
        (folder / EXPORT_FILE).write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
        is_adapter = (folder / _ADAPTER_FILE).exists()
        _add_card(api, job_id, checkpoint, folder, base_sha256)
        size = sum(path.stat().st_size for path in folder.iterdir())
    return Exported(
        folder=out,
        policy_version=checkpoint.policy_version,
        is_adapter=is_adapter,
        bytes=size,
        without_tokenizer=without_tokenizer,
        without_tools=without_tools,
    )


def _add_card(api: Api, job_id: str, checkpoint: CheckpointView, folder: Path, base_sha256: str) -> None:
    """Write the model card and the certificate, and name the base model by its hub id if it has one."""
    view = api.job(job_id)
    spec = view.spec.for_agent(checkpoint.agent)
    base, revision, config = spec.model, None, folder / _CONFIG_FILE
    if is_adapter := (folder / _ADAPTER_FILE).exists():
        settings = json.loads(config.read_text(encoding="utf-8"))
        base, revision = hub_base(str(settings.get("base_model_name_or_path", "")), spec.model)
        if is_hub_id(base):
            settings |= {"base_model_name_or_path": base, "revision": revision}
            config.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    certificate = None
    # Runs of earlier versions may have no facts.
    with contextlib.suppress(NotFoundError):
        certificate = certify(api.facts(job_id))
        (folder / "certificate.json").write_text(certificate.model_dump_json(indent=1), encoding="utf-8")
    card = CardFacts(
        job_id=job_id,
        spec=spec,
        checkpoint=checkpoint,
        base=base,
        base_sha256=base_sha256,
        is_adapter=is_adapter,
        evaluations=api.evaluations(job_id),
        packs=view.packs,
        certificate=certificate,
    )
    (folder / "README.md").write_text(model_card(card), encoding="utf-8")


def _prompt_of(spec: PlayedSpec, agent: str) -> tuple[str | None, dict[str, Any], str]:
    """Return a policy's system prompt, the settings of its tools, and why the prompt lacks them."""
    tools = spec.tools_of(agent)
    if tools is None:
        return spec.effective_prompt, {}, ""
    settings = {"tools": tools.model_dump(mode="json")}
    if spec.system_prompt is not None:  # It replaces the description.
        return spec.system_prompt, settings, ""
    try:
        return with_offer(spec.environment_prompt, tools), settings, ""
    except InvalidToolError as error:
        return spec.environment_prompt, settings, str(error)


@contextlib.contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """Yield a hidden folder next to `out` that is renamed to `out` when the block ends without an error."""
    if out.exists() or out.is_symlink():
        raise ConflictError(
            f"{out} exists already", hint="name a folder that does not exist, or remove it", code="exists"
        )
    with writing_to(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{out.name}.unfinished-"
    for leftover in out.parent.glob(f"{prefix}*"):
        # Left by an export that was killed. A running export owns its folder.
        if not _lives(leftover.name.removeprefix(prefix)):
            shutil.rmtree(leftover, ignore_errors=True)
    folder = out.with_name(f"{prefix}{os.getpid()}")
    with writing_to(out):
        folder.mkdir()
    try:
        yield folder
        try:
            # A rename onto an empty folder would succeed: if one exists now, it appeared in the meantime.
            if out.exists():
                raise FileExistsError
            folder.rename(out)
        except OSError as error:
            raise ConflictError(
                f"{out} was created by something else during the export", hint="export elsewhere"
            ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lives(process_id: str) -> bool:
    try:
        os.kill(int(process_id), 0)
    except (ValueError, ProcessLookupError):
        return False
    except OSError:
        pass  # The process is alive and belongs to another user.
    return True


def of_one_policy(found: list[CheckpointView], job_id: str) -> list[CheckpointView]:
    """Return checkpoints, all of one policy.

    Raises:
        InvalidRequestError: They belong to several policies.
    """
    agents = sorted({one.agent for one in found})
    if len(agents) > 1:
        raise InvalidRequestError(
            f"{job_id} trains several policies", hint=f"name one of {', '.join(agents)}", field="agent"
        )
    return found


def _checkpoint(api: Api, job_id: str, version: int | None, agent: str) -> CheckpointView:
    found = of_one_policy([one for one in api.checkpoints(job_id) if agent in ("", one.agent)], job_id)
    chosen = [c for c in found if version is None or c.policy_version == version]
    if not chosen:
        there = ", ".join(map(str, sorted({c.policy_version for c in found}))) or "none yet"
        if version == 0:
            raise NotFoundError(
                f"version 0 of {job_id} has no checkpoint to export: it is the policy before training",
                hint=f"name a version with a checkpoint: {there}; if you asked for @best, no trained "
                f"version was better in its evaluations",
                field="version",
            )
        raise NotFoundError(
            f"{job_id} has no checkpoint" + ("" if version is None else f" of version {version}"),
            hint=f"versions with a checkpoint: {there}; see checkpoint_every and keep_checkpoints",
            field="version",
        )
    return chosen[-1]


def _download(api: Api, job_id: str, checkpoint: CheckpointView, folder: Path) -> dict[str, Any]:
    manifest_file = folder / _MANIFEST
    api.download(job_id, checkpoint.step, _MANIFEST, manifest_file, agent=checkpoint.agent)
    try:
        manifest: dict[str, Any] = json.loads(manifest_file.read_text(encoding="utf-8"))
        expected = {str(name): str(entry["sha256"]) for name, entry in manifest["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorruptError(
            f"the checkpoint's manifest cannot be read: {error}", hint="export another version"
        ) from error
    manifest_file.unlink()
    for name in sorted(expected.keys() - _NOT_EXPORTED):
        if Path(name).name != name or name.startswith("."):
            raise CheckpointCorruptError(
                f"the checkpoint's manifest names a file outside of it: {name}", code="file_outside"
            )
        digest = api.download(job_id, checkpoint.step, name, folder / name, agent=checkpoint.agent)
        if digest != expected[name]:
            raise CheckpointCorruptError(
                f"{name} of version {checkpoint.policy_version} is damaged: its SHA-256 is {digest}, not "
                f"{expected[name]}",
                hint="export it again; if that fails too, the file on the service's disk is broken",
                code="damaged_file",
            )
    return manifest


def _add_tokenizer(api: Api, spec: TrainingSpec, folder: Path) -> tuple[str, str]:
    """Write the tokenizer's files.

    Returns the reason if the service cannot provide them, and what identifies the base model's weights.
    """
    try:
        bundle = api.renderer_of(spec)
    except TinkerGymError as error:
        return str(error), ""
    (folder / "tokenizer.json").write_text(bundle.tokenizer_json, encoding="utf-8")
    variables = {**(spec.played.environment_variables if spec.played else {}), **bundle.template_variables}
    template = with_defaults(template_text_of(bundle, tokenizer_of(bundle)), variables)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps(_tokenizer_config(bundle), indent=2) + "\n", encoding="utf-8"
    )
    for name, text in bundle.processor_files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return "", bundle.base_sha256


def _tokenizer_config(bundle: RendererBundle) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": bundle.context_length,
        "clean_up_tokenization_spaces": False,
        **bundle.special_tokens,
        **({} if bundle.add_bos_token is None else {"add_bos_token": bundle.add_bos_token}),
    }


def _require_backend() -> None:
    missing = [
        name for name in ("torch", "transformers", "peft", "backend") if not importlib.util.find_spec(name)
    ]
    if missing:
        raise MissingExtraError(
            f"merging needs {', '.join(missing)}, which is not installed here",
            hint="pip install '.[backend]' in a checkout of tinkergym, or export the adapter without --merge",
            field="merge",
        )


def _merge(folder: Path, model: str, base: str | None, fingerprint: str) -> None:
    """Replace the adapter in `folder` with the whole model."""
    merged = folder / "merged"
    command = [sys.executable, "-m", _MERGE_PROGRAM, str(folder), str(merged)]
    command += ["--model", model, "--fingerprint", fingerprint, *(["--base", base] if base else [])]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        try:
            error = from_wire(json.loads(ran.stdout.strip().rsplit("\n", 1)[-1]))
        except (ValueError, AttributeError):
            error = InternalServiceError(
                f"merging failed with exit code {ran.returncode}", hint=ran.stderr.strip()[-2000:]
            )
        raise error
    for path in [path for path in folder.iterdir() if path != merged]:
        path.unlink()
    for path in merged.iterdir():
        path.rename(folder / path.name)
    merged.rmdir()
