"""Programs played in a session, without a service."""

import json

import httpx

from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.recording.agent_program import AgentProgram
from tinkergym.recording.session_server import SessionServer
from tinkergym.rollout.play_list import play
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.testing.bundles import byte_bundle
from tinkergym.testing.samplers import RandomTokenSampler

RENDERER = Renderer.from_bundle(byte_bundle(context_length=4096))


def plan_of(roles=("agent",), *, reasoning="keep", limits=None, max_turn_tokens=12, **settings):
    first, *others = [
        EpisodePlan(
            episode_id="job-0123456789abcdef:1:0",
            seed=7,
            policy=role,
            model=role,
            environment=EnvironmentRef(id="local/play-v0"),
            decoding=Decoding(max_turn_tokens=max_turn_tokens, seed=100 * number),
            limits=limits or Limits(),
            reasoning=reasoning,
            agent=role,
            seat=number,
            **settings,
        )
        for number, role in enumerate(roles)
    ]
    return first if not others else EpisodePlan(**{**_fields(first), "others": tuple(others)})


def _fields(plan):
    return {name: getattr(plan, name) for name in EpisodePlan.__dataclass_fields__ if name != "session_id"}


def played(program, plan=None, *, tasks=None, sampler=None, renderer=RENDERER, strict=False):
    """Return the record of one episode, by role."""
    server = SessionServer(strict=strict)
    try:
        (result,) = play(
            [plan or plan_of()],
            sampler=sampler or RandomTokenSampler(256),
            renderer=renderer,
            make_env=lambda ref: AgentProgram(program, tasks),
            recorder=server,
        )
    finally:
        server.close()
    return {one.agent: one for one in result.trajectories}


def posted(session, body, role="", *, key=None, retry=0, path="chat/completions"):
    """Return the response to a call."""
    headers = {"authorization": f"Bearer {session.key if key is None else key}"}
    if retry:
        headers["x-stainless-retry-count"] = str(retry)
    url = f"{session.url(role)}/{path}"
    return httpx.post(
        url, headers=headers, content=json.dumps(body), timeout=60, trust_env=False, verify=False
    )


def said(session, *messages, role="", **settings):
    """Return the message that answers a conversation."""
    body = {"model": "any", "messages": list(messages), **settings}
    response = posted(session, body, role)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]


def user(text):
    return {"role": "user", "content": text}


BODY = {"model": "any", "messages": [user("a")]}


def streaming(session, body, *, key=None, path="chat/completions"):
    """Return the lines of an open stream, to be used in a `with`."""
    headers = {"authorization": f"Bearer {session.key if key is None else key}"}
    url, body = f"{session.url()}/{path}", json.dumps(body | {"stream": True})
    return httpx.stream("POST", url, headers=headers, content=body, timeout=60, trust_env=False, verify=False)


class Remembering(RandomTokenSampler):
    """Remembers what it sampled, by prompt and seed."""

    def __init__(self):
        super().__init__(256)
        self.sampled = {}

    def _complete(self, request):
        found = super()._complete(request)
        self.sampled[request.request_id] = (list(request.prompt_ids), found.token_ids)
        return found


def trained(record):
    return [record.segments[turn.segment].token_ids[turn.start : turn.end] for turn in record.turns]
