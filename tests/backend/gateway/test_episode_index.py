import json

from backend.gateway.episode_index import EpisodeIndex, EpisodeRow, alike, rows_of, says


def body(index, *, action="b2", reward=1.0, reason="terminated", error="", turns=1):
    turn = {"start": 2, "end": 5, "reward": reward, "observation": "Play.", "action": action}
    seat = {
        "agent": "agent_0",
        "turns": [turn] * turns,
        "early_reward": 0.5,
        "stop_reason": reason,
        "trained": True,
        "error": error,
        "final_observation": "",
    }
    return json.dumps({"episode_id": f"job-1:3:{index}", "trajectories": [seat]}).encode()


def test_sums_up_an_episode():
    (row,) = rows_of(body(7, turns=2))
    assert (row.index, row.episode_return, row.turns, row.sampled_tokens) == (7, 2.5, 2, 6)
    assert row.completed
    assert not next(rows_of(body(7, reason="environment_error"))).completed
    assert next(rows_of(body(7, turns=0))).completed
    assert not next(rows_of(body(7, turns=0, reason="context_limit"))).completed


def test_reads_recorded_steps_once():
    read, index = [], EpisodeIndex()

    def episodes():
        read.append(1)
        return [body(1), body(0)]

    for is_recorded in (False, True, True, False):
        rows = index.of_step("job-1", 3, episodes, is_recorded=is_recorded)
        assert [row.index for row in rows] == [0, 1]
    assert len(read) == 2


def test_finds_text_in_parts_and_errors():
    parts = [{"type": "tool_call", "id": "1", "name": "Calculator", "arguments": '{"x": 1}'}]
    assert says(body(0, action=parts), "calculator")
    assert says(body(0, action=[{"type": "tool_result", "id": "1", "text": "Überlauf"}]), "ÜBERLAUF")
    assert says(body(0, error="KeyError: 'board'"), "keyerror")
    assert not says(body(0), "agent_0")


def test_takes_whole_games_of_which_a_seat_began_alike():
    def seat(index, agent, opening):
        return EpisodeRow(index, agent, 0.0, "terminated", 1, 1, True, True, opening=opening)

    rows = [
        seat(0, "o", 5),
        seat(0, "x", 1),
        seat(1, "o", 6),
        seat(1, "x", 1),
        seat(2, "o", 5),
        seat(2, "x", 2),
    ]
    assert [(row.index, row.agent) for row in alike(rows, {("x", 1)})] == [
        (0, "o"),
        (0, "x"),
        (1, "o"),
        (1, "x"),
    ]
    assert list(alike(rows, None)) == rows
    assert list(alike(rows, set())) == []
