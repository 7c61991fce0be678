import json

import pytest

import tinkergym as tg
from tinkergym.cli.eval_policy import PolicySource
from tinkergym.evaluation.records import read_records
from tinkergym.remote.client_evaluations import tasks_in
from tinkergym.rollout.local_environment import describe_for_one
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec

BOARD = "board/TicTacToeVs-v0"


def figures(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_rejects_policy_that_the_environment_cannot_play(tg_run, tmp_path, monkeypatch):
    (tmp_path / "plain.py").write_text(
        "import tinkergym as tg\n"
        "class Env(tg.SingleTurnEnv):\n"
        "    def ask(self, options): return '?'\n"
        "    def score(self, answer): return 1.0\n"
    )
    monkeypatch.chdir(tmp_path)
    result = tg_run("eval", "plain:Env", "--policy", "gold")
    assert (result.exit_code, "has no gold_action()" in result.output) == (2, True)


def test_evaluates_job_at_newest_version_and_keeps_its_tokens(tg_run, start_service, tmp_path):
    start_service(lambda prompt: "b2", environments=[BOARD])
    tg_run("train", BOARD, "--steps", 1)
    file = tmp_path / "run.jsonl"
    result = figures(
        tg_run(
            *("eval", BOARD, "--policy", "job-1", "--tasks", 4, "-n", 2, "--temperature", 1),
            *("--out", file, "--json"),
        )
    )
    assert result["settings"]["policy"] == "job-1"
    assert result["episodes"] == 8
    trajectory = read_records(file).episodes[0].trajectory
    assert trajectory.sampled_tokens > 0
    assert trajectory.turns[0].action == "b2"


def test_evaluates_model_by_name_and_rejects_unknown_name(tg_run, start_service):
    start_service(lambda prompt: "b2", environments=[BOARD])
    result = tg_run("eval", BOARD, "--policy", "nano", "--tasks", 2, "--json")
    assert figures(result)["settings"]["policy"] == "nano"
    wrong = tg_run("eval", BOARD, "--policy", "job-99", "--tasks", 2)
    assert (wrong.exit_code, "is not a policy" in wrong.output) == (2, True)
    folder = tg_run("eval", BOARD, "--policy", "/models/mine", "--tasks", 2, "--json")
    assert figures(folder)["settings"]["policy"] == "/models/mine"
    slip = tg_run("eval", BOARD, "--policy", "nano", "--tasks", 2, "--env-set", "seet=first")
    assert (slip.exit_code, "could not be created" in slip.output) == (2, True)


def test_evaluates_model_with_the_sampling_asked_for(tg_run, start_service, tmp_path):
    service = start_service(lambda prompt: "b2", environments=[BOARD])
    command = ["eval", BOARD, "--policy", "nano", "--tasks", 1, "--temperature", 1, "--json"]
    plain = figures(tg_run(*command))
    assert not {"top_p", "top_k"} & plain["settings"].keys()
    service.sampled.clear()
    file = tmp_path / "run.jsonl"
    found = figures(tg_run(*command, "--top-p", 0.9, "--top-k", 20, "--out", file))
    assert (found["settings"]["top_p"], found["settings"]["top_k"]) == (0.9, 20)
    assert {(r.top_p, r.top_k) for batch in service.sampled for r in batch} == {(0.9, 20)}
    other = tg_run(*command, "--top-p", 0.8, "--top-k", 20, "--out", file)
    assert (other.exit_code, "top_p was 0.9" in other.output) == (1, True)
    wrong = tg_run(*command, "--top-p", 1.1)
    assert (wrong.exit_code, "--top-p" in wrong.output) == (2, True)


def test_says_that_only_a_service_could_know_unreachable_policy(tg_run, monkeypatch):
    monkeypatch.setenv("TINKERGYM_URL", "http://127.0.0.1:9")
    result = tg_run("eval", BOARD, "--policy", "gould")
    assert result.exit_code != 0
    assert "of random, legal, gold, and jobs and models need a service" in result.output


def test_evaluates_and_plays_the_policy_of_one_agent(tg_run, start_service):
    service = start_service(lambda prompt: "b2", environments=[BOARD, "games/Nim-v0"])
    agents = {"player_0": tg.Train(), "player_1": tg.Train()}
    with tg.Client() as client:
        game = EnvironmentRef(id="games/Nim-v0")
        client.submit(RLSpec(environment=game, agents=agents, rollout="server", steps=1))
    result = figures(tg_run("eval", BOARD, "--policy", "job-1/player_1@0", "--tasks", 2, "--json"))
    assert result["settings"]["policy"] == "job-1/player_1"
    assert tg_run("play", BOARD, "--policy", "job-1/player_1@0", "--watch").exit_code == 0
    assert {request.policy for batch in service.sampled for request in batch} == {"job-1/player_1"}
    ambiguous = tg_run("eval", BOARD, "--policy", "job-1@0", "--tasks", 2)
    assert (ambiguous.exit_code, "several policies" in ambiguous.output) == (2, True)


def test_knows_tasks_trained_on():
    train, test = (describe_for_one("math/Arithmetic-v0", {"split": split}) for split in ("train", "test"))
    source = PolicySource(name="job-1", settings={}, play=iter, trained_in=(train.ref,))
    overlap = source.overlap(train)
    assert overlap.trained_on == overlap.tasks > 0
    assert source.overlap(test).trained_on == 0
    assert PolicySource(name="job-1", settings={}, play=iter).overlap(train) is None


@pytest.mark.parametrize(("begins", "known"), [("", 0), ("job-1@1", None)])
def test_knows_no_overlap_of_job_with_initial_policy(begins, known):
    train = describe_for_one("math/Arithmetic-v0", {"split": "train"})
    spec = RLSpec(
        model="nano",
        environment=train.ref,
        steps=1,
        initial_policy=begins,
        evaluate=[tg.EvaluateEvery(1, split="test")],
    )
    assert [one.trained_on for one in tasks_in(train.make, spec).values()] == [known]
