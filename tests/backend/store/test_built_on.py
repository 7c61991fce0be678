from backend.store.built_on import references_of
from tinkergym.schema.jobs.dataset import SFTSpec
from tinkergym.schema.jobs.distillation import DistillationSpec
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import Train
from tinkergym.schema.opponents import Frozen, League, Replay

GAME = {"environment": EnvironmentRef(id="board/TicTacToe-v0"), "steps": 1}


def named(spec):
    return {str(ref) for ref in references_of(spec)}


def test_builds_on_what_a_job_begins_with():
    assert named(SFTSpec(data="ab" * 32, steps=1, initial_policy="job-1@3")) == {"job-1@3"}
    assert named(SFTSpec(data="ab" * 32, steps=1)) == set()


def test_builds_student_on_teacher_if_that_was_trained():
    student = {"environment": EnvironmentRef(id="x"), "steps": 1}
    assert named(DistillationSpec(**student, teacher="job-2@7")) == {"job-2@7"}
    assert named(DistillationSpec(**student, teacher="nano-instruct")) == set()


def test_builds_game_on_its_opponents_and_beginnings_of_its_seats():
    agents = {
        "x": Train(initial_policy="job-1/x@2"),
        "o": League(anchors=[Frozen("job-3@4")], anchor_share=0.5),
    }
    assert named(RLSpec(**GAME, agents=agents)) == {"job-1/x@2", "job-3@4"}


def test_builds_on_a_job_that_is_repeated():
    spec = RLSpec(**GAME, agents={"x": Train(), "o": Replay("job-5")})
    assert named(spec) == {"job-5"}
