import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.rollout.environment_host import system_prompt_of
from tinkergym.wrappers import SystemPrompt


class Mirror(tg.SingleTurnEnv):
    """Keeps what it was answered."""

    system_prompt = "Mirror."

    def ask(self, options):
        return "?"

    def score(self, answer):
        self.answered = answer
        return 1.0, {"length": float(len(answer))}


def test_replaces_environments_own_system_prompt():
    env = SystemPrompt(Mirror(), "Be brief.")
    assert system_prompt_of(env) == "Be brief."
    assert system_prompt_of(env.env) == "Mirror."
    assert env.metadata["turns"] == env.env.metadata["turns"]


@pytest.mark.parametrize("text", [None, 3, "\ud800"])
def test_requires_text_as_system_prompt(text):
    with pytest.raises(InvalidRequestError) as caught:
        SystemPrompt(Mirror(), text)
    assert caught.value.field == "text"
