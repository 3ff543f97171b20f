"""The litellm SDK: two turns with tools, whole and streamed.

Rule: every answer goes back into the history as litellm gives it.
"""

import os

import litellm
from tools import CHAT_TOOLS, TURNS, call


def answer(messages, *, is_streamed):
    asked = {"model": "openai/scripted", "messages": messages, "tools": CHAT_TOOLS}
    asked |= {"api_base": os.environ["OPENAI_BASE_URL"], "num_retries": 0}
    if not is_streamed:
        return litellm.completion(**asked).choices[0].message
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    return litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message


def chat(*, is_streamed):
    messages = [{"role": "system", "content": f"Be brief. Streamed: {is_streamed}."}]
    for turn in TURNS:
        messages.append({"role": "user", "content": turn})
        while (message := answer(messages, is_streamed=is_streamed)).tool_calls:
            messages.append(message)
            for made in message.tool_calls:
                content = call(made.function.name, made.function.arguments)
                messages.append({"role": "tool", "tool_call_id": made.id, "content": content})
        messages.append(message)
        print(message.content)


chat(is_streamed=False)
chat(is_streamed=True)
