"""openai-python: two turns with tools, as programs without a framework write them: whole, streamed, and on responses.

Rule: every answer goes back into the history as the SDK gives it.
"""

import openai
from tools import CHAT_TOOLS, SCHEMAS, TURNS, call

client = openai.OpenAI(max_retries=0)


def answer_whole(messages):
    return client.chat.completions.create(model="scripted", messages=messages, tools=CHAT_TOOLS).choices[0].message


def answer_streamed(messages):
    options = {"include_usage": True}
    with client.chat.completions.stream(
        model="scripted", messages=messages, tools=CHAT_TOOLS, stream_options=options
    ) as stream:
        return stream.get_final_completion().choices[0].message


def chat(answer):
    messages = [{"role": "system", "content": f"Be brief. This is {answer.__name__}."}]
    for turn in TURNS:
        messages.append({"role": "user", "content": turn})
        while (message := answer(messages)).tool_calls:
            messages.append(message)
            for made in message.tool_calls:
                content = call(made.function.name, made.function.arguments)
                messages.append({"role": "tool", "tool_call_id": made.id, "content": content})
        messages.append(message)
        print(message.content)


def respond_whole(items):
    tools = [{"type": "function", **schema} for schema in SCHEMAS]
    return client.responses.create(model="scripted", input=items, tools=tools, store=False)


def respond_streamed(items):
    tools = [{"type": "function", **schema} for schema in SCHEMAS]
    with client.responses.stream(model="scripted", input=items, tools=tools, store=False) as stream:
        stream.until_done()
        return stream.get_final_response()


def talk(respond):
    items = []
    for turn in TURNS:
        items.append({"role": "user", "content": f"{turn} ({respond.__name__})"})
        while calls := read_calls(response := respond(items)):
            items += response.output
            for made in calls:
                output = call(made.name, made.arguments)
                items.append({"type": "function_call_output", "call_id": made.call_id, "output": output})
        items += response.output
        print(response.output_text)


def read_calls(response):
    return [item for item in response.output if item.type == "function_call"]


for answer in (answer_whole, answer_streamed):
    chat(answer)
for respond in (respond_whole, respond_streamed):
    talk(respond)
