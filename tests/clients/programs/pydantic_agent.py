"""pydantic-ai: an Agent with tools, two turns, on both of its OpenAI models, whole and streamed.

Rule: the second turn gets the first one's messages.
"""

import asyncio

from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from tools import FUNCTIONS, MOST_CALLS, TURNS


async def drain(_context, events):
    async for _ in events:
        pass


async def talk(model, *, is_streamed):
    name = f"{type(model).__name__}, {'streamed' if is_streamed else 'whole'}"
    agent = Agent(model, instructions=f"Be brief. This is {name}.", tools=list(FUNCTIONS.values()))
    history = []
    for turn in TURNS:
        # With a handler of events the calls are streamed; `run_stream` would take text beside a tool call for the end.
        handler = drain if is_streamed else None
        limits = UsageLimits(request_limit=MOST_CALLS)
        result = await agent.run(turn, message_history=history, event_stream_handler=handler, usage_limits=limits)
        history = result.all_messages()
        print(result.output)


async def main():
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        for is_streamed in (False, True):
            await talk(kind("scripted"), is_streamed=is_streamed)


asyncio.run(main())
