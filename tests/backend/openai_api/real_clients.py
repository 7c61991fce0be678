"""Programs that use a service through the ordinary calls of real clients: `python real_clients.py NAME`.

Run by the interpreter that has the packages. Each check prints its name when it has passed.
"""

import asyncio
import os
import sys
from functools import reduce
from operator import add as joined

from pydantic import BaseModel

URL, KEY, TOOLS = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], os.environ["TOOLS_MODEL"]
MODEL = "nano"
SAY = [{"role": "user", "content": "SAY hello there"}]
SLOW_SEED = int(os.environ["SLOW_SEED"])
"""The model is loaded while a request with this seed waits."""
PAIR = 'SAY {"a": 1, "b": 2}'
CALL = 'SAY <call>add {"a": 1, "b": 2}</call>'
ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}


class Pair(BaseModel):
    """The structure of an answer. The engine of the model with tools can keep it, the other cannot."""

    a: int
    b: int


def passed(what, is_right=True):
    assert is_right, what
    print(what, flush=True)


def official():
    import openai

    client = openai.OpenAI(max_retries=0)
    passed("models", MODEL in [model.id for model in client.models.list()])
    passed("one model", client.models.retrieve(MODEL).id == MODEL)
    whole = client.chat.completions.create(
        model=MODEL,
        messages=SAY,
        logprobs=True,
        top_logprobs=1,
        seed=1,
        extra_body={"return_token_ids": True},
    )
    (choice,) = whole.choices
    passed("chat", choice.message.content == "hello there" and choice.finish_reason == "stop")
    passed("logprobs", choice.logprobs.content[0].top_logprobs[0].token == "h")
    passed("ids", len(choice.token_ids) == whole.usage.completion_tokens and whole.prompt_token_ids)
    passed("n", len(client.chat.completions.create(model=MODEL, messages=SAY, n=3).choices) == 3)
    stream = client.chat.completions.create(
        model=MODEL, messages=SAY, stream=True, stream_options={"include_usage": True}
    )
    events = list(stream)
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    passed("stream", text == "hello there" and events[-1].usage == whole.usage)
    with client.chat.completions.stream(model=MODEL, messages=SAY) as helper:
        passed("stream helper", helper.get_final_completion().choices[0].message.content == "hello there")
    tools = [{"type": "function", "function": ADD}]
    asked = [{"role": "user", "content": CALL}]
    called = client.chat.completions.create(model=TOOLS, messages=asked, tools=tools)
    (call,) = called.choices[0].message.tool_calls
    passed("tools", (call.function.name, called.choices[0].finish_reason) == ("add", "tool_calls"))
    result = {"role": "tool", "tool_call_id": call.id, "content": "SAY it is 3"}
    after = client.chat.completions.create(
        model=TOOLS, messages=[*asked, called.choices[0].message, result], tools=tools
    )
    passed("results of tools", after.choices[0].message.content == "it is 3")
    with client.chat.completions.stream(model=TOOLS, messages=asked, tools=tools) as helper:
        (streamed,) = helper.get_final_completion().choices[0].message.tool_calls
    passed("streamed tools", streamed.function.arguments == call.function.arguments)
    text = client.completions.create(model=MODEL, prompt="SAY hi<|im_end|>", logprobs=1, echo=True)
    passed("completions", text.choices[0].text.endswith("hi"))
    pieces = client.completions.create(model=MODEL, prompt="SAY hi<|im_end|>", stream=True)
    passed("streamed completions", "".join(piece.choices[0].text for piece in pieces) == "hi")
    passed("ids as a prompt", client.completions.create(model=MODEL, prompt=[5, 6], max_tokens=2).usage)
    response = client.responses.create(model=MODEL, input="SAY hello there", instructions="Be brief.")
    passed("responses", response.output_text == "hello there" and response.status == "completed")
    with client.responses.stream(model=MODEL, input="SAY hello there") as helper:
        kinds = [event.type for event in helper]
        passed("responses stream", helper.get_final_response().output_text == "hello there")
    passed("events", kinds[0] == "response.created" and kinds[-1] == "response.completed")
    asked = [{"role": "user", "content": PAIR}]
    found = client.chat.completions.parse(model=TOOLS, messages=asked, response_format=Pair)
    passed("structure of a chat", found.choices[0].message.parsed == Pair(a=1, b=2))
    found = client.responses.parse(model=TOOLS, input=PAIR, text_format=Pair)
    passed("structure of a response", found.output_parsed == Pair(a=1, b=2))
    slow = {"model": MODEL, "messages": SAY, "stream": True, "seed": SLOW_SEED}
    with client.chat.completions.with_streaming_response.create(**slow) as raw:
        lines = list(raw.iter_lines())
    passed("comments while a model is loaded", lines[0].startswith(": ") and "loaded" in lines[0])
    pieces = client.chat.completions.create(**slow)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    passed("stream that opens before its model is loaded", text == "hello there")
    for what, kind, ask in (
        ("unknown model", openai.NotFoundError, {"model": "gpt-9"}),
        ("penalty", openai.BadRequestError, {"presence_penalty": 0.5}),
        ("structure", openai.BadRequestError, {"response_format": {"type": "json_object"}}),
        ("too long", openai.BadRequestError, {"messages": [{"role": "user", "content": "a" * 600}]}),
    ):
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": SAY, **ask})
        except kind as error:
            passed(what, error.code and error.body["message"])
        else:
            raise AssertionError(what)
    passed("async", asyncio.run(_async_text(openai.AsyncOpenAI(max_retries=0))) == "hello there")


async def _async_text(client):
    stream = await client.chat.completions.create(model=MODEL, messages=SAY, stream=True)
    return "".join([event.choices[0].delta.content or "" async for event in stream])


def litellm():
    import litellm

    settings = {"model": f"openai/{MODEL}", "messages": SAY, "api_base": URL, "api_key": KEY}
    whole = litellm.completion(**settings, max_tokens=20, logprobs=True)
    passed("chat", whole.choices[0].message.content == "hello there")
    pieces = [c.choices[0].delta.content or "" for c in litellm.completion(**settings, stream=True)]
    passed("stream", "".join(pieces) == "hello there")
    called = litellm.completion(
        **{**settings, "model": f"openai/{TOOLS}", "messages": [{"role": "user", "content": CALL}]},
        tools=[{"type": "function", "function": ADD}],
    )
    passed("tools", called.choices[0].message.tool_calls[0].function.name == "add")
    streamed = litellm.completion(
        **{**settings, "model": f"openai/{TOOLS}", "messages": [{"role": "user", "content": CALL}]},
        tools=[{"type": "function", "function": ADD}],
        stream=True,
    )
    whole = litellm.stream_chunk_builder(list(streamed)).choices[0].message
    passed("streamed tools", whole.tool_calls[0].function == called.choices[0].message.tool_calls[0].function)
    found = litellm.completion(
        **{**settings, "model": f"openai/{TOOLS}", "messages": [{"role": "user", "content": PAIR}]},
        response_format=Pair,
    )
    passed("structure", Pair.model_validate_json(found.choices[0].message.content) == Pair(a=1, b=2))
    try:
        litellm.completion(**settings, response_format=Pair)
    except litellm.BadRequestError:
        passed("structure that the engine cannot keep")
    try:
        litellm.completion(**{**settings, "messages": [{"role": "user", "content": "a" * 600}]})
    except litellm.ContextWindowExceededError:
        passed("too long")


def agents():
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    chat = OpenAIChatCompletionsModel(model=TOOLS, openai_client=AsyncOpenAI(max_retries=0))

    @function_tool
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return f"SAY it is {a + b}"

    async def run():
        for what, model in (("responses, the default", TOOLS), ("chat", chat)):
            agent = Agent(name="a", instructions="Be brief.", model=model, tools=[add])
            passed(what, (await Runner.run(agent, "SAY hello there")).final_output == "hello there")
            passed(f"tools by {what}", (await Runner.run(agent, CALL)).final_output == "it is 3")
            streamed = Runner.run_streamed(agent, "SAY hello there")
            kinds = [event.type async for event in streamed.stream_events()]
            is_right = "raw_response_event" in kinds and streamed.final_output == "hello there"
            passed(f"stream by {what}", is_right)

    asyncio.run(run())


def langchain():
    import openai
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=MODEL, max_retries=0, max_tokens=20)
    passed("invoke", model.invoke("SAY hello there").content == "hello there")
    passed("stream", "".join(chunk.content for chunk in model.stream("SAY hello there")) == "hello there")

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    bound = ChatOpenAI(model=TOOLS, max_retries=0).bind_tools([add])
    passed("tools", bound.invoke(CALL).tool_calls[0]["args"] == {"a": 1, "b": 2})
    whole = reduce(joined, bound.stream(CALL))
    passed("streamed tools", whole.tool_calls[0]["args"] == {"a": 1, "b": 2})
    structured = ChatOpenAI(model=TOOLS, max_retries=0).with_structured_output(Pair)
    passed("structure", structured.invoke(PAIR) == Pair(a=1, b=2))
    try:
        model.with_structured_output(Pair).invoke(PAIR)
    except openai.BadRequestError as error:
        passed("structure that the engine cannot keep", error.param == "structured")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
