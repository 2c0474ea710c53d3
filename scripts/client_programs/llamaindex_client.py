"""LlamaIndex's OpenAILike: chats and completions, whole and streamed; a required tool."""

import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

url, key, prompt, max_tokens = sys.argv[1:]
settings = {"model": "sluice", "api_base": f"{url}/v1", "api_key": key, "temperature": 0, "max_retries": 0}
chat = OpenAILike(**settings, max_tokens=int(max_tokens), is_chat_model=True, context_window=2048)
messages = [ChatMessage(role="user", content=prompt)]
whole = chat.chat(messages).message.content
assert "".join(part.delta or "" for part in chat.stream_chat(messages)) == whole, "streamed otherwise"
plain = OpenAILike(**settings, max_tokens=int(max_tokens), is_chat_model=False, context_window=2048)
text = plain.complete("The water").text
assert "".join(part.delta or "" for part in plain.stream_complete("The water")) == text, "streamed otherwise"


def clock(place: str) -> str:
    """Say what time it is in a place."""
    return f"noon in {place}"


caller = OpenAILike(**settings, max_tokens=128, is_chat_model=True, is_function_calling_model=True, context_window=2048)
answer = caller.chat_with_tools([FunctionTool.from_defaults(clock)], "What time is it in Oslo?", tool_required=True)
(call,) = caller.get_tool_calls_from_response(answer)
assert (call.tool_name, set(call.tool_kwargs)) == ("clock", {"place"}), call
print(whole)
