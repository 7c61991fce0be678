"""Keys reach their own session alone, and end with it."""

from tests.tinkergym.recording.sessions import BODY, played, posted, said, user


def test_refuses_foreign_keys_unknown_roles_and_ended_sessions():
    kept = []

    def play_one(session):
        kept.append(session)
        said(session, user("a"))
        answers = [
            posted(session, BODY, key="guess"),
            posted(session, BODY, path="embeddings"),
            posted(session, {"model": "any"}),
        ]
        kept.append([(one.status_code, one.json()["error"]["code"]) for one in answers])
        return 1.0

    played(play_one)
    assert [status for status, _ in kept[1]] == [401, 404, 400]
    assert "key" not in repr(kept[0])
