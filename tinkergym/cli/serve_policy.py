"""`tinkergym serve-policy`: how programs that speak the OpenAI API reach a policy."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tinkergym.cli.console import out
from tinkergym.cli.json_output import AsJson, emit
from tinkergym.cli.named_policy import named_policy
from tinkergym.remote.client import Client
from tinkergym.schema.ids import PolicyRef

_KEY_VARIABLE = "TINKERGYM_API_KEY"


def serve_policy(
    policy: Annotated[
        str,
        typer.Argument(
            metavar="JOB[/AGENT][@VERSION]",
            help="A job's newest policy, one of its versions (@40, @best), or a model's name.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Print the URL and name of a policy, and examples for the openai client, curl and litellm.

    The service answers these requests while it runs; nothing has to be started.

    Example: tinkergym serve-policy job-74e0b0387b33b183@best
    """
    with Client() as client:
        found, url = named_policy(client, policy, {}), f"{client.url}/openai/v1"
        is_served = policy in {one.name for one in client.served_names()}
    # The API does not know names of jobs, nor folders here.
    model = policy if is_served or PolicyRef.is_meant(policy) else found.name
    prompt = found.environment_prompt if found.system_prompt is None else found.system_prompt
    if as_json:
        emit({"url": url, "model": model, "system_prompt": prompt or ""})
        return
    for line in (f"URL    {url}", f"model  {model}", f"key    in {_KEY_VARIABLE}; for a key that"):
        _say(line)
    _say("       can only sample and read: tinkergym keys create NAME --read-only")
    messages = [{"role": "user", "content": "..."}]
    if prompt:
        _say("\nIts job trained it with a system prompt, which the examples send.")
        messages.insert(0, {"role": "system", "content": prompt})
    for title, text in _examples(url, model, messages):
        _say(f"\n{title}\n")
        _say(text)


def _examples(url: str, model: str, messages: list[dict[str, str]]) -> list[tuple[str, str]]:
    shown = json.dumps(messages, ensure_ascii=False)
    body = json.dumps({"model": model, "messages": messages}, ensure_ascii=False)
    quoted = body.replace("'", "'\\''")
    return [
        (
            "Python, with the package openai:",
            f"""import os, openai

client = openai.OpenAI(base_url="{url}", api_key=os.environ["{_KEY_VARIABLE}"])
reply = client.chat.completions.create(model="{model}", messages={shown})
print(reply.choices[0].message.content)""",
        ),
        (
            "curl:",
            f"""curl {url}/chat/completions -H "Authorization: Bearer ${_KEY_VARIABLE}" \\
  -H "Content-Type: application/json" -d '{quoted}'""",
        ),
        (
            "litellm:",
            f"""import os, litellm

reply = litellm.completion(
    model="openai/{model}", api_base="{url}", api_key=os.environ["{_KEY_VARIABLE}"], messages={shown}
)""",
        ),
    ]


def _say(text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)
