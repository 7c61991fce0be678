"""Warnings of steps whose groups have zero variance: what explains it, and collapsed policies. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from backend.episodes.played import Played, PlayedSeat, trained_seats
from backend.jobs.collapse_watch import entropy_of
from backend.jobs.completions import WHAT_EQUAL_REWARDS_MEAN
from backend.jobs.step_report import whose
from tinkergym.schema.events import StepEvent, WarningEvent
from tinkergym.schema.jobs.parts import CollapseGuard
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.trajectory.content_parts import content_text

_MOST = 0.5
"""Of episodes, completions or groups: a larger fraction explains why nothing is learned."""
_SAME = 0.9
"""An action that is a larger fraction of all is always the same."""
_LONGEST_ACTION = 80
_ILLEGAL = ("illegal_move", "illegal_moves")
"""Metrics of a turn by which environments report an illegal action."""


def nothing_to_compare(event: StepEvent, played: Played) -> WarningEvent | None:
    """Return a warning if every group of a policy had zero variance, else None."""
    silent, compared = event.by_policy("zero_variance_groups"), event.by_policy("compared_groups")
    # There are none if a value head or a teacher scores each episode separately.
    untaught = [agent for agent, count in compared.items() if count and silent.get(agent) == count]
    if not untaught:
        return None
    causes = explanations(trained_seats(played))
    advice = (
        f"This explains it: {'; '.join(causes)}"
        if causes
        else f"{WHAT_EQUAL_REWARDS_MEAN}, or raise group_size or sampling.temperature"
    )
    return WarningEvent(
        name="nothing_to_compare",
        message=f"in none of the {compared[untaught[0]]:.0f} groups of step {event.step}"
        f"{' and'.join(map(whose, untaught))} did any episode earn more than what it is compared with"
        f"{_what_all_earned(event)}: the rewards taught nothing. {advice}",
        step=event.step,
    )


def policy_collapsed(spec: RLSpec, event: StepEvent, played: Played) -> list[WarningEvent]:
    """Return a warning for each policy whose actions hardly vary while most groups have zero variance."""
    silent, found = event.by_policy("zero_variance_groups"), list[WarningEvent]()
    for agent, compared in event.by_policy("compared_groups").items():
        seats = [
            one for one in trained_seats(played) if not agent or spec.policy_at(one.trajectory.agent) == agent
        ]
        entropy, alike = entropy_of(seats), silent.get(agent, 0.0)
        if entropy is None or entropy >= CollapseGuard().least_entropy or alike <= _MOST * compared:
            continue
        causes = "; ".join(_causes_of_collapse(spec.for_agent(agent), seats))
        found.append(
            WarningEvent(
                name="policy_collapsed",
                message=f"the policy{whose(agent)} has collapsed at step {event.step}: its actions have an "
                f"entropy of {entropy:.2g} nats per token, and {alike:.0f} of {compared:.0f} groups have "
                f"zero variance. {_commonest_action(seats)}. Likely causes: "
                f"{causes}. Start again from an earlier version with one of them changed, unless it earns "
                "all there is to earn: then the task is learned",
                step=event.step,
            )
        )
    return found


def explanations(seats: Sequence[PlayedSeat]) -> list[str]:
    """Return what explains why a step's episodes taught nothing; empty if nothing is conspicuous."""
    by_agent: dict[str, list[PlayedSeat]] = {}
    for seat in seats:
        by_agent.setdefault(seat.trajectory.agent, []).append(seat)
    found = []
    for agent, own in by_agent.items():
        name = agent if len(by_agent) > 1 else ""
        found += [_never_moves(agent, own), _illegal(name, own), _cut(name, own)]
    return [text for text in found if text]


def _never_moves(agent: str, seats: Sequence[PlayedSeat]) -> str:
    if any(seat.trajectory.turns for seat in seats) or not all(seat.trajectory.completed for seat in seats):
        return ""
    return f"{agent!r} never had a turn, because each game ended before"


def _illegal(agent: str, seats: Sequence[PlayedSeat]) -> str:
    moved = [seat.trajectory.turns for seat in seats if seat.trajectory.turns]
    if sum(any(_is_illegal(turn.metrics) for turn in turns) for turns in moved) <= _MOST * len(moved):
        return ""
    of = f" of {agent!r}" if agent else ""
    return f"{_illegal_share(seats)}{of} (say in the prompt which are legal, or set on_illegal)"


def _cut(agent: str, seats: Sequence[PlayedSeat]) -> str:
    turns = [turn for seat in seats for turn in seat.trajectory.turns]
    cut = sum(turn.finish_reason == "length" for turn in turns)
    if cut <= _MOST * len(turns):
        return ""
    of = f" of {agent!r}" if agent else ""
    return (
        f"{cut / len(turns):.0%} of the completions{of} were cut at a limit (raise sampling.max_turn_tokens)"
    )


def _illegal_share(seats: Sequence[PlayedSeat]) -> str:
    turns = [turn for seat in seats for turn in seat.trajectory.turns]
    illegal = sum(_is_illegal(turn.metrics) for turn in turns)
    return f"illegal moves in {illegal / len(turns):.0%} of the turns" if illegal else ""


def _is_illegal(metrics: dict[str, float]) -> bool:
    return any(metrics.get(name, 0.0) > 0 for name in _ILLEGAL)


def _causes_of_collapse(spec: RLSpec, seats: Sequence[PlayedSeat]) -> list[str]:
    algorithm = spec.algorithm
    causes = [f"learning_rate={algorithm.learning_rate:g} is too high"]
    if not (algorithm.entropy_coefficient or algorithm.kl_coefficient):
        causes.append("there is no entropy or KL term (entropy_coefficient, kl_coefficient)")
    if illegal := _illegal_share(seats):
        causes.append(illegal)
    _, share = _most_frequent(seats)
    if share >= _SAME:
        causes.append("the reward favours always doing the same")
    return causes


def _commonest_action(seats: Sequence[PlayedSeat]) -> str:
    action, share = _most_frequent(seats)
    always = "always the same action" if share == 1 else f"the same action in {share:.0%} of the turns"
    shown = action if len(action) <= _LONGEST_ACTION else f"{action[:_LONGEST_ACTION]}..."
    return f"It gives {always}: {shown!r}"


def _most_frequent(seats: Sequence[PlayedSeat]) -> tuple[str, float]:
    actions = Counter(content_text(turn.action) for seat in seats for turn in seat.trajectory.turns)
    ((action, times),) = actions.most_common(1)
    return action, times / actions.total()


def _what_all_earned(event: StepEvent) -> str:
    if event.reward_mean is None or event.reward_std is None or event.reward_std > 1e-9:
        return ""
    return f" (all completed episodes earned {event.reward_mean:g})"
