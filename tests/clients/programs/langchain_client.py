"""langchain-openai: a loop over `bind_tools`, and langchain's own agent on both APIs.

Rule: the history is what langchain keeps.
"""

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from tools import FUNCTIONS, MOST_CALLS, TURNS

TOOLS = {name: tool(function) for name, function in FUNCTIONS.items()}


def loop(*, is_streamed):
    model = ChatOpenAI(model="scripted", max_retries=0, streaming=is_streamed).bind_tools(list(TOOLS.values()))
    messages = [SystemMessage(f"Be brief. Streamed: {is_streamed}.")]
    for turn in TURNS:
        messages.append(HumanMessage(turn))
        while (answer := model.invoke(messages)).tool_calls:
            messages.append(answer)
            messages += [TOOLS[call["name"]].invoke(call) for call in answer.tool_calls]
        messages.append(answer)
        print(answer.text)


def run_agent(*, on_responses):
    model = ChatOpenAI(model="scripted", max_retries=0, use_responses_api=on_responses)
    agent = create_agent(model, list(TOOLS.values()), system_prompt=f"Be brief. Responses: {on_responses}.")
    messages = []
    for turn in TURNS:
        # A call of the model and one of its tools are two steps.
        settings = {"recursion_limit": 2 * MOST_CALLS}
        messages = agent.invoke({"messages": [*messages, HumanMessage(turn)]}, settings)["messages"]
        print(messages[-1].text)


loop(is_streamed=False)
loop(is_streamed=True)
run_agent(on_responses=False)
run_agent(on_responses=True)
