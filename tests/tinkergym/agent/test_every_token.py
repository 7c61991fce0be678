"""Random tokens in every environment: whatever happens in an episode, its ledger holds what was sampled."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import TinkerGymError
from tinkergym.messages import observation_messages
from tinkergym.registration.environments import make_environment
from tinkergym.registration.packs import find_packs
from tinkergym.rollout.executors import InlineExecutor
from tinkergym.rollout.play_list import play
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.schema.sampling import Completion
from tinkergym.testing import RandomTokenSampler, RecordingSampler, family_bundle, ledger_violations
from tinkergym.testing.faults import FAULTS, make_fault
from tinkergym.trajectory.trajectory import StopReason

RENDERERS = {name: Renderer.from_bundle(family_bundle(name)) for name in ("qwen", "llama", "mistral")}
EPISODES = 150


class Thinking:
    """Puts reasoning before every other answer, as a model in training does."""

    def __init__(self, renderer):
        self.sampler = RandomTokenSampler(renderer.vocab_size)
        self.reasoning = renderer.encode_answer("<think>\nhm\n</think>\n\n")[:-1]

    def submit(self, requests, deliver):
        self.sampler.submit(
            requests, lambda answers: deliver([self._think(*p) for p in zip(requests, answers, strict=True)])
        )

    def close(self):
        pass

    def _think(self, request, answer):
        if request.seed % 2:
            return answer
        ids = [*self.reasoning, *answer.token_ids][: request.max_tokens]
        finish = answer.finish_reason if len(ids) == len(self.reasoning) + len(answer.token_ids) else "length"
        settings = {"token_ids": ids, "sampling_logprobs": [-1.0] * len(ids), "finish_reason": finish}
        return answer.model_copy(update=settings)


def playable():
    """The environments of installed packs that need nothing and show text."""
    found = []
    for name in (name for pack in find_packs() for name in pack.environment_ids):
        try:
            env = make_environment(EnvironmentRef(id=name))
            observation_messages(env.reset(seed=0)[0])
            env.close()
        except (TinkerGymError, TypeError, ValueError, OSError):
            continue
        found.append(name)
    return found


def violations(renderer, plans, make_env):
    sampler = RecordingSampler(Thinking(renderer))
    results = play(plans, sampler=sampler, renderer=renderer, make_env=make_env, executor=InlineExecutor(4))
    found, reasons = [], set()
    for result in results:
        session, trajectory = sampler.session(result.episode_id), result.trajectory
        found += ledger_violations(trajectory, session.completions, session.requests)
        reasons.add(trajectory.stop_reason)
    return found, reasons


def test_misplaces_no_token_in_many_random_episodes():
    environments = playable()
    assert {"bandit/Bandit-v0", "board/TicTacToeVs-v0", "math/Arithmetic-v0"} <= set(environments)
    cases = list(itertools.product(RENDERERS, ("keep", "drop"), environments))
    per_case = -(-EPISODES // len(cases))
    found, played = [], 0
    for name, reasoning in itertools.product(RENDERERS, ("keep", "drop")):
        plans = [
            EpisodePlan(
                episode_id=f"{environment}-{seed}",
                seed=seed,
                policy="p",
                environment=EnvironmentRef(id=environment),
                decoding=Decoding(max_turn_tokens=16, seed=1000 * seed),
                limits=Limits(max_turns=12, max_episode_tokens=100 if seed % 3 else None),
                system_prompt="Be brief." if seed % 2 else None,
                reasoning=reasoning,
            )
            for number, environment in enumerate(environments)
            for seed in range(number, number + per_case)  # so that all settings below occur
        ]
        found += violations(RENDERERS[name], plans, make_environment)[0]
        played += len(plans)
    assert found == []
    assert played >= EPISODES


@pytest.mark.parametrize("name", RENDERERS)
def test_keeps_tokens_of_failing_episodes_in_place(name):
    kinds = [kind for kind in FAULTS if not kind.startswith("Hangs") and kind != "Dies"]
    plans = [
        EpisodePlan(
            episode_id=f"{kind}-{seed}",
            seed=seed,
            policy="p",
            environment=EnvironmentRef(id=kind),
            decoding=Decoding(max_turn_tokens=16, seed=seed),
            limits=Limits(max_turns=5),
        )
        for kind in kinds
        for seed in range(4)
    ]
    found, reasons = violations(RENDERERS[name], plans, make_fault)
    assert found == []
    assert reasons >= {StopReason.TERMINATED, StopReason.ENVIRONMENT_ERROR, StopReason.INVALID_REWARD}


@given(
    answers=st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=8), min_size=1, max_size=5),
    reasoning=st.sampled_from(["keep", "drop"]),
    name=st.sampled_from(list(RENDERERS)),
    context=st.integers(40, 400),
)
@settings(max_examples=60, deadline=None)
def test_keeps_any_tokens_at_all_where_they_were_sampled(answers, reasoning, name, context):
    renderer = RENDERERS[name]
    thought = renderer.encode_answer("<think>x</think>")[:-1]
    script = itertools.chain(answers, itertools.repeat([1]))

    class Listed:
        def submit(self, requests, deliver):
            for request in requests:
                drawn = next(script)
                ids = (
                    [*thought, *drawn][: request.max_tokens] if drawn[0] % 2 else drawn[: request.max_tokens]
                )
                deliver(
                    [
                        Completion(
                            request_id=request.request_id,
                            token_ids=ids,
                            sampling_logprobs=[-0.25 * (i + 1) for i in range(len(ids))],
                            finish_reason="length",
                            policy_version=3,
                        )
                    ]
                )

        def close(self):
            pass

    plan = EpisodePlan(
        episode_id="e",
        seed=1,
        policy="p",
        environment=EnvironmentRef(id="NeverEnds"),
        reasoning=reasoning,
        limits=Limits(max_turns=6, max_context_tokens=context),
    )
    sampler = RecordingSampler(Listed())
    (result,) = play(
        [plan], sampler=sampler, renderer=renderer, make_env=make_fault, executor=InlineExecutor()
    )
    session = sampler.session("e")
    trajectory = result.trajectory
    assert trajectory.stop_reason in {StopReason.TURN_LIMIT, StopReason.CONTEXT_LIMIT}
    assert ledger_violations(trajectory, session.completions, session.requests) == []
    assert all(len(segment.token_ids) <= context for segment in trajectory.segments)
