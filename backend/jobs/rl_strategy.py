"""Reinforcement learning: how an RL job learns from the episodes that its policies play."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from backend.episodes.played import Played, trained_seats
from backend.jobs.all_policies import together
from backend.jobs.completions import waste_warnings
from backend.jobs.dynamic_sampling import learned_from, rounds_so_far
from backend.jobs.job_context import JobContext
from backend.jobs.learn_phase import Learned, learn, learn_together
from backend.jobs.strategy import Strategy
from backend.jobs.train_batch import outcomes_of
from backend.jobs.zero_variance import policy_collapsed
from tinkergym.schema.events import StepEvent, WarningEvent
from tinkergym.schema.ids import policy_of
from tinkergym.schema.jobs.rl import RLSpec


class Reinforcement(Strategy):
    """The strategy of an RL job: the algorithms of its policies credit the rewards."""

    def replacements(self, spec: RLSpec, played: Played) -> list[int]:
        """Return new groups that replace zero-variance ones."""
        return rounds_so_far(spec, played).wanted if spec.algorithm.replacement_rounds else []

    def kept(self, spec: RLSpec, played: Played) -> Played:
        """Return the episodes of groups that were not replaced."""
        return learned_from(spec, played)[0]

    def learn(self, context: JobContext[RLSpec], step: int, played: Played) -> Learned:
        """Train on a step's episodes, each policy on the seats that it played."""
        spec = context.spec
        own = {
            agent: replace(context, policies={agent: policy}, spec=spec.for_agent(agent))
            for agent, policy in context.policies.items()
            if agent in spec.updated_at(step)
        }
        if len(own) > 1:
            return together(learn_together(own, step, played))
        return together({agent: learn(one, step, played) for agent, one in own.items()})

    def remember(self, context: JobContext[RLSpec], agents: Collection[str], played: Played) -> None:
        """Let the algorithms of the policies that learned note the step's outcomes."""
        for agent in agents:
            own = context.spec.for_agent(agent)
            if own.algorithm.remembers:
                seats = trained_seats(played, policy_of(context.job_id, agent))
                own.algorithm.remember(outcomes_of(own, seats), context.memory)

    def waste(self, spec: RLSpec, event: StepEvent, played: Played) -> list[WarningEvent]:
        """Return warnings about why a step taught little."""
        siblings = spec.algorithm.compares_siblings
        found = waste_warnings(event.step, played, rewards_count=True, compares_siblings=siblings)
        # A game's guard looks for collapse by itself.
        return found if spec.guard else found + policy_collapsed(spec, event, played)
