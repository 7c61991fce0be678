import json
import pickle
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tinkergym.errors import InvalidRequestError, InvalidRewardError
from tinkergym.network.model_urls import origin_of
from tinkergym.rubrics import LLMJudge, Rubric
from tinkergym.rubrics.llm_judge import ALLOWED_VARIABLE

KEY = "sk-very-secret"


class Judge(ThreadingHTTPServer):
    """Answers as a chat completions API does, with what the test says: a text, a status, or a location."""

    def __init__(self):
        self.answers, self.asked = [], []
        server, turns = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.asked.append((self.path, self.headers["Authorization"], json.loads(body)))
                with turns:
                    answer = server.answers.pop(0) if server.answers else "0.5"
                status, location = (200, "") if isinstance(answer, str) else answer
                said = json.dumps({"choices": [{"message": {"content": answer}}]}).encode()
                self.send_response(status)
                if location:
                    self.send_header("Location", location)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"


@pytest.fixture
def server():
    with Judge() as server:
        yield server
        server.shutdown()


def judge(server, **settings):
    return LLMJudge(server.url, model="small", api_key=KEY, **{"pause_seconds": 0.0, **settings})


def test_takes_a_judges_number_as_score(server):
    server.answers = ["0.75"]
    rubric = Rubric([judge(server).term(name="quality", weight=2.0)])
    found = rubric.score(answer="7", task="Name a prime.", reference="2, 3, 5, 7", reward=0.0)
    assert (found.reward, found.terms) == (1.5, {"quality": 0.75})
    ((path, key, body),) = server.asked
    assert (path, key, body["model"]) == ("/v1/chat/completions", f"Bearer {KEY}", "small")
    assert "Name a prime." in body["messages"][1]["content"]


@pytest.mark.parametrize("answer", ["7 of 10", "", "excellent", "1.5", "-1", (200, ""), (404, ""), (500, "")])
def test_raises_when_judge_gives_no_score_instead_of_0(server, answer):
    server.answers = [answer] * 3
    if answer == (200, ""):
        server.answers = [(200, "")]  # its content is no text
    with pytest.raises(InvalidRewardError) as raised:
        judge(server).score("7")
    assert KEY not in str(raised.value)


def test_retries_overloaded_judge(server):
    server.answers = [(429, ""), (503, ""), "1"]
    assert judge(server).score("7") == 1.0
    assert len(server.asked) == 3


def test_names_silent_judge_with_the_cause(server):
    server.shutdown()
    server.server_close()
    rubric = Rubric([judge(server).term()])
    with pytest.raises(InvalidRewardError) as raised:
        rubric.score(answer="7")
    assert raised.value.field == "reward/judge"


def test_follows_no_redirect_and_passes_no_key_along(server):
    with Judge() as elsewhere:
        server.answers = [(307, f"{elsewhere.url}/chat/completions")]
        with pytest.raises(InvalidRewardError):
            judge(server).score("7")
        assert elsewhere.asked == []
        elsewhere.shutdown()


def test_asks_only_judges_that_an_operator_lists(server, monkeypatch):
    monkeypatch.setenv(ALLOWED_VARIABLE, "[]")
    with pytest.raises(InvalidRewardError):
        judge(server).score("7")
    assert server.asked == []
    monkeypatch.setenv(ALLOWED_VARIABLE, json.dumps([origin_of(server.url)]))
    assert judge(server).score("7") == 0.5


def test_shows_the_key_nowhere(server):
    one = judge(server)
    assert KEY not in repr(one)
    assert KEY not in str(vars(one).get("url", ""))
    with pytest.raises(TypeError):
        pickle.dumps(one)


@pytest.mark.parametrize("url", ["ftp://host/v1", "host/v1", "https://user:secret@host/v1"])
def test_rejects_url_that_cannot_be_asked(url):
    with pytest.raises(InvalidRequestError) as raised:
        LLMJudge(url, model="m")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("key", [f"{KEY}\n", f"{KEY} x", "ключ", 7])
def test_rejects_key_that_no_header_can_carry_without_showing_it(key):
    with pytest.raises(InvalidRequestError) as caught:
        LLMJudge("https://judge.example/v1", model="small", api_key=key)
    assert caught.value.field == "api_key"
    assert str(key).strip() not in str(caught.value)


@pytest.mark.parametrize(
    "setting", [{"attempts": 10**9}, {"pause_seconds": 1e9}, {"pause_seconds": -1}, {"timeout_seconds": 1e9}]
)
def test_bounds_waiting_for_a_judge(setting):
    with pytest.raises(InvalidRequestError):
        LLMJudge("https://judge.example/v1", model="small", **setting)


def test_raises_typed_error_for_url_that_cannot_be_asked():
    with pytest.raises(InvalidRewardError):
        LLMJudge("https://judge.example/a b", model="small", attempts=1).score("x")
