"""Demonstrations: what a scripted player did, as messages."""

import tinkergym as tg
from examples.shared.demonstration import demonstration


def test_begins_with_the_system_prompt_that_training_shows():
    rows = []
    for instructions in (False, True):
        env = tg.make("board/TicTacToeVs-v0", instructions=instructions)
        gold = env.get_wrapper_attr("gold_action")
        rows.append(demonstration(env, lambda _, gold=gold: gold(), seed=0)["messages"])
        prompt = env.metadata.get("system_prompt")
    plain, instructed = rows
    assert plain[0]["role"] == "user"
    assert prompt
    assert instructed == [{"role": "system", "content": prompt}, *plain]
