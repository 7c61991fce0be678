"""What a program gets."""

from tests.tinkergym.recording.sessions import plan_of, played


def test_draws_the_task_by_the_seed_of_the_session():
    drawn = []

    def note(session):
        drawn.append(session.task)
        return 1.0

    for _ in range(2):
        played(note, tasks=list("abcdef"))
    played(note, plan_of(task_index=3), tasks=list("abcdef"))
    assert drawn[0] == drawn[1] != drawn[2] == "d"
