"""Find out what would make a job fail at its first step, before it is accepted.

A pack is foreign code: it is created and reset in its own process, which may crash or hang.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from backend.admission.check_places import CheckPlaces
from backend.admission.facts import Checked, ModelCatalog
from backend.admission.request_bounds import refuse_many_images
from backend.processes import quick_start
from backend.processes.bounded_pipes import communicate
from backend.processes.children import waited_seconds
from backend.processes.foreign_code import environment_for_packs
from backend.settings.gateway_limits import GatewayLimits
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.errors import (
    InvalidEnvironmentError,
    InvalidRequestError,
    ServiceUnavailableError,
    TinkerGymError,
    UnknownEnvironmentError,
    from_wire,
)
from tinkergym.registration.environments import require_known
from tinkergym.registration.games import is_game
from tinkergym.registration.packs import installed_ns
from tinkergym.schema.evaluate_every import EvaluatedTasks
from tinkergym.schema.jobs.evaluated_spec import EvaluatedSpec
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.training_spec import TrainingSpec
from tinkergym.schema.names import REMOTE_ID
from tinkergym.schema.views import RendererBundle

_REMEMBERED = 256
_LAST_WORDS = 1500
"""Characters of a crashed check's output to show."""


@dataclass(frozen=True, slots=True)
class _Probe:
    prompt_tokens: int
    prompt_images: int
    checked: Checked


class Preflight:
    """Implements `JobCheck`."""

    def __init__(
        self,
        catalog: ModelCatalog,
        limits: GatewayLimits,
        environment_variables: Sequence[str] = (),
        *,
        waited: Callable[[int], float] = waited_seconds,
    ) -> None:
        """Prepare.

        Args:
            catalog: The models.
            limits: The operator's.
            environment_variables: Names that packs may read besides the usual ones.
            waited: Returns how many seconds a process waited for a core.
        """
        self._catalog = catalog
        self._limits = limits
        self._environment_variables = environment_variables
        self._waited = waited
        self._places = CheckPlaces(limits.job_checks_at_once)
        self._lock = threading.Lock()
        # Cache successes only: the cause of a failure may have been fixed since.
        self._known: BoundedDict[tuple[str, ...], _Probe] = BoundedDict(_REMEMBERED)

    def check(self, spec: PlayedSpec, tenant_id: str = "") -> Checked:
        """Create and reset the job's environment, if the service plays it.

        Raises:
            InvalidRequestError: The model or the environment is unknown, the environment cannot be started,
                its first prompt has too many images or, with a completion, exceeds the model's context, or
                the job asks for a longer context than the model's.
        """
        for agent, own in spec.shown_first().items():
            with _named(agent):
                self._check_room(own)
        # With another rollout the environment is a class in the client, and its id is only a name.
        if spec.rollout != "server":
            return Checked()
        found: dict[str, Checked] = {}
        for name, environment in spec.own_environments.items():
            found[name] = self._seen_first(_alone(spec, environment), tenant_id)
        return replace(_together(found), evaluated=self.check_evaluations(spec, tenant_id))

    def _seen_first(self, spec: PlayedSpec, tenant_id: str) -> Checked:
        """Make one environment, and see that the first prompt of every seat leaves room for an answer."""
        shown = spec.shown_first()
        bundle = self._renderer_of(spec)
        checked = self._probe(spec, bundle, tenant_id).checked
        for agent, own in shown.items():
            bundle = self._renderer_of(own)
            with _named(agent):
                self._refuse_large_prompt(own, bundle, tenant_id)
        return checked

    def _renderer_of(self, spec: TrainingSpec) -> RendererBundle:
        bundle = self._catalog.renderer(spec.model, spec.chat_template)
        return bundle.with_settings(spec.template_variables, spec.template_date)

    def _check_room(self, spec: PlayedSpec) -> None:
        """Refuse what cannot fit into the context of a seat's own model, whatever its prompt is."""
        spec.require_room(1, self._renderer_of(spec).context_length)

    def check_evaluations(self, spec: EvaluatedSpec, tenant_id: str = "") -> dict[str, EvaluatedTasks]:
        """Create and reset the environments in which the service will evaluate a job; return their tasks.

        Raises:
            InvalidRequestError: As `check`, with the field `evaluate`.
        """
        bundle = self._renderer_of(spec)
        found: dict[str, EvaluatedTasks] = {}
        # What an initial policy was trained in is not known here.
        trained = [] if spec.initial_policy else list(spec.own_environments.values())
        for evaluation in spec.evaluations:
            environment = spec.environment_of(evaluation)
            try:
                if evaluation.environment not in ("", *spec.own_environments):
                    require_known(environment.id)
                own: PlayedSpec = spec.played or RLSpec(
                    model=spec.model,
                    chat_template=spec.chat_template,
                    template_variables=spec.template_variables,
                    template_date=spec.template_date,
                    environment=environment,
                    steps=1,
                    sampling=spec.sampling,
                )
                played = _alone(own, environment)
                seen = self._refuse_large_prompt(played, bundle, tenant_id, trained)
            except TinkerGymError as error:
                error.field = "evaluate"
                raise
            if seen.tasks:
                found[spec.name_of(evaluation)] = EvaluatedTasks(
                    tasks=seen.tasks, trained_on=seen.trained_on, sha256=seen.tasks_sha256
                )
        return found

    def _refuse_large_prompt(
        self,
        spec: PlayedSpec,
        bundle: RendererBundle,
        tenant_id: str,
        trained: Sequence[EnvironmentRef] = (),
    ) -> Checked:
        probe = self._probe(spec, bundle, tenant_id, trained)
        refuse_many_images(probe.prompt_images, self._limits.prompt_images, field="environment")
        spec.require_room(probe.prompt_tokens, bundle.context_length)
        return probe.checked

    def _probe(
        self,
        spec: PlayedSpec,
        bundle: RendererBundle,
        tenant_id: str,
        trained: Sequence[EnvironmentRef] = (),
    ) -> _Probe:
        """Create and reset an environment in a child; one of an evaluation also compares its tasks."""
        agents, game = list(spec.seats), _game_settings(spec)
        if not (agents or game["self_play"]) or not is_game(spec.environment.id):
            _require_known(spec.environment.id)
        compared = [one.model_dump() for one in trained]
        installed = installed_ns(spec.environment.id)
        asked = json.dumps([spec.system_prompt, sorted(agents), game, compared, installed])
        key = (spec.environment.model_dump_json(), bundle.sha256, asked)
        with self._lock:
            if key in self._known:
                return self._known[key]
        with self._places.taken(tenant_id, self._limits.job_check_seconds):
            probe = self._run(spec, bundle, compared)
        if spec.environment.id == REMOTE_ID:
            return probe  # A server that was reachable a while ago may be gone.
        if probe.checked.data:
            return probe  # Its data may be others next time.
        with self._lock:
            self._known[key] = probe
        return probe

    def _run(self, spec: PlayedSpec, bundle: RendererBundle, trained: Sequence[Any] = ()) -> _Probe:
        question = {
            "environment": spec.environment.model_dump(),
            "system_prompt": spec.system_prompt,
            "agents": list(spec.seats),
            **_game_settings(spec),
            "bundle": bundle.model_dump(),
            "trained": list(trained),
        }
        child = subprocess.Popen(
            quick_start.command("backend.admission.preflight_child"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment_for_packs(self._environment_variables),
            # So that `_kill_group` reaches whatever the environment starts.
            start_new_session=True,
        )
        try:
            out, err = communicate(child, json.dumps(question).encode(), self._limits.job_check_seconds)
        except subprocess.TimeoutExpired:
            if self._waited(child.pid) > self._limits.job_check_seconds / 2:
                raise ServiceUnavailableError(
                    f"the machine is too busy to check {spec.environment.id}: most of "
                    f"{self._limits.job_check_seconds:g} s passed without a free core",
                    hint="try again, or ask the operator to raise limits.job_check_seconds",
                ) from None
            raise InvalidEnvironmentError(
                f"{spec.environment.id} was not created and reset within "
                f"{self._limits.job_check_seconds:g} s",
                hint="look for a download, a deadlock or an endless loop in its constructor and reset, or "
                "ask the operator to raise limits.job_check_seconds",
                field="environment",
                code="too_slow",
            ) from None
        finally:
            # Also after an answer: processes that the environment started would outlive the check.
            _kill_group(child)
        try:
            answer = json.loads(out)
        except ValueError:
            words = err.decode("utf-8", "replace")[-_LAST_WORDS:].strip()
            raise InvalidEnvironmentError(
                f"{spec.environment.id} ended its process ({child.returncode}): {words or 'no output'}",
                hint="try it with tinkergym.make(...).reset(seed=0)",
                field="environment",
            ) from None
        if "error" in answer:
            raise from_wire(answer["error"])
        return _Probe(answer.pop("prompt_tokens"), answer.pop("prompt_images"), Checked(**answer))


def _alone(spec: PlayedSpec, environment: EnvironmentRef) -> PlayedSpec:
    """Return the job as if this were its only environment."""
    return spec.model_copy(update={"environment": environment, "environments": []})


@contextmanager
def _named(agent: str) -> Iterator[None]:
    """Name the seat in what is refused."""
    try:
        yield
    except InvalidRequestError as error:
        if agent:
            error.field = f"agents.{agent}"
        raise


def _together(by_name: Mapping[str, Checked]) -> Checked:
    """Combine the facts of several environments: a prompt only if they have the same."""
    found = list(by_name.values())
    prompts = {one.environment_prompt for one in found}
    alike = all(one.environment_variables == found[0].environment_variables for one in found)
    return Checked(
        packs={name: version for one in found for name, version in one.packs.items()},
        environment_prompt=prompts.pop() if len(prompts) == 1 else None,
        environment_variables=found[0].environment_variables if alike else {},
        data={name: sha256 for name, one in by_name.items() for sha256 in one.data.values()},
        group_rewards=any(one.group_rewards for one in found),
        # A game is the only environment of its job.
        agents=found[0].agents,
        offered=found[0].offered,
    )


def _game_settings(spec: PlayedSpec) -> dict[str, Any]:
    """Return the part of the question about a game."""
    return {"self_play": spec.own_league is not None, "scripted": spec.scripted_players()}


def _require_known(env_id: str) -> None:
    """Refuse an unregistered id before a process is started for it."""
    try:
        require_known(env_id)
    except UnknownEnvironmentError as error:
        separator = " " if error.hint.endswith("?") else "; "
        hint = f"{error.hint}{separator}use rollout='client' to train in your own environment"
        raise UnknownEnvironmentError(error.message, hint=hint, field="environment.id") from None


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """End the child and all processes of its session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
