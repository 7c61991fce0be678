"""Checks of the task: observations are deltas, gold actions are the best, the declared kind is true."""

from __future__ import annotations

from typing import Any

from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.baselines import GoldPolicy, LegalPolicy, RandomTextPolicy, TextPolicy, play_episode
from tinkergym.messages import observation_text
from tinkergym.tasks.grid import cell_of, declares_cell, tasks_of
from tinkergym.testing.checks_subject import (
    SEEDS,
    AnyEnv,
    CheckFailedError,
    CheckSkippedError,
    Subject,
    comparable,
)
from tinkergym.trajectory.trajectory import Trajectory, reason_line
from tinkergym.user_code.quoting import quoted

_LONG = 40
"""A repeated observation of at least this many characters is not a coincidence."""
_GOLD_SEEDS = range(20)
_MOST_TURNS = 100
_MOST_TASKS = 2000
"""On which gold is tried."""


def deltas(subject: Subject) -> None:
    """An observation contains only what is new: it does not repeat everything shown before.

    One repetition may be a response to an illegal action, so the check needs two in a row, each longer than
    the last.
    """
    env = subject.make()
    for seed in SEEDS:
        shown = [observation_text(entry[0]) for entry in subject.entries(env, seed)]
        for first, second, third in zip(shown, shown[1:], shown[2:], strict=False):
            grows = _LONG <= len(first) < len(second) < len(third)
            if grows and first in second and second in third:
                raise CheckFailedError(
                    f"observations grow and repeat what came before (seed {seed}): {third[:120]!a}",
                    hint="return only what is new since the last action: the policy has seen the rest",
                )
    env.close()


def gold(subject: Subject) -> None:
    """The gold action earns the most: no other policy that is tried earns more on average.

    In a single-turn environment this holds for every seed, and if metadata has `best_return`, gold earns
    exactly that. If it draws from tasks, gold earns the same on every one of them.
    """
    env = subject.make()
    if not env.has_wrapper_attr("gold_action"):
        raise CheckSkippedError(
            "it has no gold_action()", hint="a method that returns the best action lets this be checked"
        )
    try:
        golden = [_return(env, GoldPolicy(env), seed) for seed in _GOLD_SEEDS]
    except InvalidRequestError as error:
        raise CheckSkippedError(error.message) from None
    best = (env.metadata or {}).get("best_return")
    if best is not None and any(abs(earned - best) > 1e-9 for earned in golden):
        raise CheckFailedError(
            f"gold earns {min(golden):g} to {max(golden):g}, but metadata['best_return'] is {best:g}",
            hint="fix gold_action() or the scoring",
        )
    rivals: dict[str, TextPolicy] = {"random words": RandomTextPolicy()}
    if env.has_wrapper_attr("legal_actions"):
        rivals["legal actions"] = LegalPolicy(env)
    single = (env.metadata or {}).get("turns") == "single"
    for name, rival in rivals.items():
        earned = [_return(env, rival, seed) for seed in _GOLD_SEEDS]
        worse = [seed for seed in _GOLD_SEEDS if earned[seed] > golden[seed] + 1e-9]
        if sum(earned) > sum(golden) + 1e-9 or (single and worse):
            raise CheckFailedError(
                f"{name} earn {_mean(earned):g}, the gold action {_mean(golden):g}"
                + (f"; with seed {worse[0]} they earn more" if worse else ""),
                hint="fix gold_action() or the scoring",
            )
    if single:
        _gold_on_every_task(env, best)
    if len(set(golden)) == 1 and all(
        _return(env, rival, seed) == golden[seed] for rival in rivals.values() for seed in _GOLD_SEEDS
    ):
        raise CheckFailedError(
            f"the gold action always earns {golden[0]:g}, and so does every other action that was tried",
            hint="nothing can be learned from a constant reward; check the scoring",
        )
    env.close()


def _gold_on_every_task(env: AnyEnv, best: float | None) -> None:
    """Refuse a task on which gold earns less than on others: its answer is written in another way, say."""
    source = tasks_of(env)
    if source is None:
        return
    earned = [_return(env, GoldPolicy(env), 0, task) for task in range(min(len(source), _MOST_TASKS))]
    most = max(earned) if best is None else best
    worse = [task for task, value in enumerate(earned) if value < most - 1e-9]
    if worse:
        task = worse[0]
        raise CheckFailedError(
            f"gold earns {earned[task]:g} on task {task} of {source.name}, but {most:g} on others; it earns "
            f"less on {len(worse)} of {len(earned)} tasks. Task {task} is {quoted(source[task])}",
            hint="fix these answers (a number where others are text?), gold_action() or the scoring",
        )


def grid_cell(subject: Subject) -> None:
    """The kind declared in the metadata is right: single- or multi-turn, data-free or data-dependent."""
    env = subject.make()
    if not declares_cell(env):
        raise CheckSkippedError(
            "metadata does not declare its kind",
            hint='declare metadata["turns"] (single or multi) and metadata["data"] (free or dependent)',
        )
    cell = cell_of(env)
    if cell.turns == "single":
        _every_episode_has_one_turn(subject, env)
    else:
        _some_episode_has_two_turns(subject, env)
    if cell.data == "dependent":
        _tasks_are_chosen_by_index(env)
    else:
        _an_index_changes_nothing(env)
    env.close()


def _every_episode_has_one_turn(subject: Subject, env: AnyEnv) -> None:
    for seed in SEEDS:
        *_, last = entries = list(subject.entries(env, seed))
        if len(entries) != 2 or not last[2]:
            how = "truncates" if last[3] else "goes on"
            raise CheckFailedError(
                f'metadata declares turns="single", but the episode of seed {seed} {how} after one action',
                hint="terminate after the first action, or declare turns as multi",
            )


def _some_episode_has_two_turns(subject: Subject, env: AnyEnv) -> None:
    # A player that answers with words may lose at once, which proves nothing.
    knows = subject.actions is not None or env.has_wrapper_attr("legal_actions")
    if knows and all(len(list(subject.entries(env, seed))) == 2 for seed in _GOLD_SEEDS):
        raise CheckFailedError(
            'metadata declares turns="multi", but every episode ends with the first action',
            hint="declare turns as single",
        )


def _tasks_are_chosen_by_index(env: AnyEnv) -> None:
    first = [_first_observation(env, seed, 0) for seed in (0, 0)]
    if first[0] != first[1]:
        raise CheckFailedError(
            f"task 0 with seed 0 begins in two ways: {quoted(first[0])} and {quoted(first[1])}",
            hint='choose the task by options["task_index"], and everything else by self.np_random',
        )
    try:
        others = [_first_observation(env, 0, index) for index in (1, 2, 3)]
    except InvalidRequestError:
        return  # Very few tasks.
    if all(other == first[0] for other in others):
        raise CheckFailedError(
            'reset(options={"task_index": i}) begins alike for the first four tasks',
            hint='use the task in options["task_index"]: self.tasks.choose(self.np_random, options)',
        )
    try:
        env.reset(seed=0, options={"task_index": -1})
    except Exception:
        return
    raise CheckFailedError(
        'reset(options={"task_index": -1}) is accepted',
        hint="raise InvalidRequestError for a task that does not exist",
    )


def _an_index_changes_nothing(env: AnyEnv) -> None:
    for seed in SEEDS:
        drawn = comparable(env.reset(seed=seed)[0])
        try:
            chosen = _first_observation(env, seed, 0)
        except InvalidRequestError:
            continue  # An unknown option is refused.
        if chosen != drawn:
            raise CheckFailedError(
                f'metadata declares data="free", but options={{"task_index": 0}} changes seed {seed} from '
                f"{quoted(drawn)} to {quoted(chosen)}",
                hint='declare metadata["data"] = "dependent", or keep the tasks in a tasks.TaskSource',
            )


def _first_observation(env: AnyEnv, seed: int, task_index: int) -> Any:
    return comparable(env.reset(seed=seed, options={"task_index": task_index})[0])


def _return(env: AnyEnv, policy: TextPolicy, seed: int, task: int | None = None) -> float:
    trajectory: Trajectory = play_episode(env, policy, seed=seed, task_index=task, most_turns=_MOST_TURNS)
    if not trajectory.completed:
        why = reason_line(trajectory.stop_reason, trajectory.error)
        raise CheckFailedError(
            f"seed {seed} ends as {trajectory.stop_reason}: {why}",
            hint="fix what the error names",
        )
    return trajectory.episode_return


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
