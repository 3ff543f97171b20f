"""openai-agents: a Runner with function tools, two turns, on both of its models.

Rule: the second turn goes on from what the first result says is the history.
"""

import asyncio

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from tools import FUNCTIONS, MOST_CALLS, TURNS

set_tracing_disabled(True)


async def talk(model, *, is_streamed):
    name = f"{type(model).__name__}, {'streamed' if is_streamed else 'whole'}"
    tools = [function_tool(function) for function in FUNCTIONS.values()]
    agent = Agent(name="reader", instructions=f"Be brief. This is {name}.", tools=tools, model=model)
    items = []
    for turn in TURNS:
        items.append({"role": "user", "content": turn})
        if is_streamed:
            result = Runner.run_streamed(agent, items, max_turns=MOST_CALLS)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, items, max_turns=MOST_CALLS)
        items = result.to_input_list()
        print(result.final_output)


async def main():
    client = AsyncOpenAI(max_retries=0)
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        for is_streamed in (False, True):
            await talk(kind(model="scripted", openai_client=client), is_streamed=is_streamed)


asyncio.run(main())
