"""Conversations that are played through a template."""

from hypothesis import strategies as st

from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.messages import assistant, system, user
from tinkergym.schema.sampling import Completion

WORDS = st.text(st.sampled_from("abc d.12\né世"), max_size=12)


# An answer that begins with white space would be spelt otherwise where a template writes it behind a newline.
ANSWERS = st.builds(
    lambda thinks, text: ("<think>\nhm\n</think>\n\n" if thinks else "") + text,
    st.booleans(),
    WORDS.map(str.strip),
)


def answer(renderer, request, text):
    ids = renderer.encode_answer(text)
    return Completion(
        request_id=request.request_id,
        token_ids=ids,
        sampling_logprobs=[-0.5] * len(ids),
        finish_reason="stop",
        policy_version=0,
    )


def talk(renderer, turns, *, prompt=None, reasoning="keep"):
    """Play a conversation; return its trajectory, requests, answers, and the messages before each answer."""
    loop = AgentLoop(
        renderer, EpisodePlan(episode_id="e", seed=0, policy="p", system_prompt=prompt, reasoning=reasoning)
    )
    messages = [system(prompt)] if prompt else []
    requests, completions, conversations = [], [], []
    request = loop.begin(turns[0][0])
    for number, (question, text) in enumerate(turns):
        messages.append(user(question))
        conversations.append(list(messages))
        requests.append(request)
        completions.append(answer(renderer, request, text))
        loop.receive(completions[-1])
        messages.append(assistant(text))
        following = turns[number + 1][0] if number + 1 < len(turns) else "bye"
        request = loop.stepped(following, 0.0, number + 1 == len(turns), False)
    return loop.trajectory(), requests, completions, conversations
