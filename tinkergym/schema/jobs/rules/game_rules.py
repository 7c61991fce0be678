"""Who plays the seats of a game."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tinkergym.schema.ids import HOW_TO_WRITE_POLICIES, PolicyRef
from tinkergym.schema.jobs.rules.rule_table import Rule, RuleTable, first


def _seats(job: Any, kind: str) -> Iterator[tuple[str, Any]]:
    return ((agent, seat) for agent, seat in job.agents.items() if seat.kind == kind)


def _names_no_policy(job: Any) -> Any:
    chosen, updated = job.update_order
    named = [(f"agents.{agent}.of", seat.of) for agent, seat in _seats(job, "league")]
    named += [(f"agents.{agent}.agent", seat.agent) for agent, seat in _seats(job, "shared")]
    named += [("evaluate", one.agent) for one in job.evaluate if job.agents]
    named += [("updates", updated)] if chosen == "only" else []
    wrong = first((at, agent) for at, agent in named if agent and agent not in job.trained_agents)
    return wrong and {"at": wrong[0], "agent": wrong[1], "trained": ", ".join(job.trained_agents) or "none"}


def _no_reference(job: Any) -> Any:
    begun = ((agent, seat.initial_policy) for agent, seat in _seats(job, "train"))
    return first(one for one in begun if one[1] and not PolicyRef.find(one[1]))


def _external_seconds(job: Any) -> Any:
    most = job.seconds_of_external_answers
    names = " and ".join(dict.fromkeys(repr(one.model) for one in job.external_models))
    return most >= job.limits.step_timeout_seconds and names and {"most": most, "names": names}


def _only_in_a_pack(job: Any) -> str | None:
    if not job.environment.is_remote:
        return None
    players = "External or Replay" if job.external_models or job.replayed_jobs else None
    return players or (_uses_tools(job) and "tools")


def _uses_tools(job: Any) -> Any:
    return first(agent for agent in job.trained_agents if job.tools_of(agent) is not None)


GAME = RuleTable(
    (
        Rule(
            "nothing_to_train",
            lambda job: job.agents and not job.trained_agents,
            "agents",
            "has no seat with Train, so no policy would be trained",
            "give at least one seat tg.Train()",
        ),
        Rule(
            "no_such_policy",
            _names_no_policy,
            "{found[at]}",
            "names {found[agent]!r}, which is not a seat with Train",
            "these are: {found[trained]}",
        ),
        Rule(
            "not_a_policy",
            _no_reference,
            "agents.{found[0]}.initial_policy",
            "{found[1]!r:.80} is not a valid policy reference",
            HOW_TO_WRITE_POLICIES,
        ),
        Rule(
            "self_play_with_replay",
            lambda job: job.self_play and job.replayed_jobs,
            "self_play",
            "draws opponents, but a Replay is always the same",
            "remove one of them",
        ),
        Rule(
            "self_play_of_another",
            lambda job: job.self_play and job.self_play.of is not None,
            "self_play.of",
            "cannot be set, as every seat plays with its own policy's versions",
            "leave it out",
        ),
        Rule(
            "self_play_at_one_seat",
            lambda job: job.self_play and job.agents and len(job.learning_seats) < 2,
            "self_play",
            "needs two trained seats",
            "with one, give the others a League in agents",
        ),
        Rule(
            "failed_games_kept",
            lambda job: job.plays_game and job.on_failure == "keep",
            "on_failure",
            "cannot be 'keep' with agents or self_play: a failure at one seat ends the game for all, so the "
            "others' rewards are meaningless",
            "choose 'drop' or 'retry:N'",
        ),
        Rule(
            "environments_of_a_game",
            lambda job: job.plays_game and job.environments,
            "environments",
            "cannot be {it.environments!r:.200} with agents",
            "leave out one of them",
        ),
        Rule(
            "another_game_evaluated",
            lambda job: (
                job.plays_game
                and any(one.environment not in ("", job.environment.id) for one in job.evaluate)
            ),
            "evaluate",
            "cannot name another environment if the agents of a game are trained",
            "leave environment out, or evaluate it yourself with job.policy().evaluate(...)",
        ),
        Rule(
            "external_in_lockstep",
            lambda job: job.external_models and job.deterministic,
            "deterministic",
            "cannot be True with a tg.opponents.External, which answers differently each time",
            "leave out one of them",
        ),
        Rule(
            "external_slower_than_a_step",
            _external_seconds,
            "limits.step_timeout_seconds",
            "{it.limits.step_timeout_seconds:g} must be above the {found[most]:g} s that the External "
            "players ({found[names]}) of one game may take for their answers: all may answer within a step",
            "raise it or lower their timeout_seconds",
        ),
        Rule(
            "replay_outside_the_service",
            lambda job: job.replayed_jobs and job.rollout != "server",
            "rollout",
            "must be 'server' with a Replay, whose record is stored in the service",
            "leave it out",
        ),
        Rule(
            "replay_of_other_groups",
            lambda job: job.replayed_jobs and job.algorithm.replacement_rounds,
            "algorithm.dynamic_sampling_rounds",
            "cannot be set with a Replay, whose groups are fixed",
            "leave it out",
        ),
        Rule(
            "several_models_in_lockstep",
            lambda job: job.deterministic and job.other_models,
            "deterministic",
            "cannot be True while agents use several base models, because lockstep needs a single one",
            "leave out one of them",
        ),
        Rule(
            "template_of_several_models",
            lambda job: job.chat_template and job.other_models,
            "chat_template",
            "cannot be set while agents use several base models, which have their own templates",
            "leave out one of them",
        ),
        Rule(
            "game_at_a_server",
            _only_in_a_pack,
            "agents",
            "cannot have {found} in a game on a server",
            "use the game from an installed pack",
        ),
        Rule(
            "tools_of_a_script",
            lambda job: job.rollout == "script" and _uses_tools(job),
            "agents.{found}.tools",
            "cannot be set if a script plays, which calls them itself",
            "leave them out",
        ),
    ),
    lambda job: (job,) if job.plays_game else (),
)
