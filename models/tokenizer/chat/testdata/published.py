"""Renders conversations with chat templates as transformers does: JSON on stdout.

    python published.py FILE...    templates of models
"""
import copy
import json
import sys

from transformers.utils import chat_template_utils as utils

normal = getattr(utils, "_normalize_chat_messages", lambda chat: chat)
tools = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather's \"now\" <x> é", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "City é"}, "unit": {"type": "string", "enum": ["c", "f"]},
                                         "days": {"type": "integer", "default": 3}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "now", "description": "Time", "parameters": {"type": "object", "properties": {}}}},
]
system = {"role": "system", "content": "Be brief."}
hi = {"role": "user", "content": " Hi <b>\"there\"</b> & 'you' é 🙂\n"}
hello = {"role": "assistant", "content": "Hello.\n"}
ask = {"role": "user", "content": "Weather in Paris?"}
thought = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello."}
reasoned = {"role": "assistant", "content": "Hello.", "reasoning_content": "let me think"}
older = {"role": "assistant", "content": "Hello.", "thinking": "let me think", "reasoning": "r"}
result = {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": "{\"t\": 21}"}
second = {"role": "tool", "tool_call_id": "bcdefghij", "name": "now", "content": "12:00"}


def calls(content, *functions, **fields):
    ids = ["abcdefghi", "bcdefghij"]
    return {"role": "assistant", "content": content, **fields, "tool_calls": [
        {"id": ids[i], "type": "function", "function": {"name": name, "arguments": arguments}} for i, (name, arguments) in enumerate(functions)]}


paris = ("get_weather", {"city": "Paris"})
both = calls("Both", ("get_weather", {"city": "Paris", "days": 2, "x": 1.5, "l": [1, "a", None, True], "o": {"k": "v"}}), ("now", {}), reasoning_content="why")
part = {"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": "part two"}]}
conversations = [
    [hi], [system, hi], [system, hi, hello], [system, hi, hello, ask], [hi, hello, ask], [hi, hello, ask, hello, hi], [],
    [hi, thought, ask], [hi, reasoned, ask], [hi, older, ask], [hi, reasoned],
    [ask, calls("", paris), result, hello, hi], [system, ask, calls(None, ("get_weather", "{\"city\": \"Paris\"}")), result],
    [ask, calls("ok", paris), result, hi], [system, ask, both, result, second], [ask, both, result, second, hello, hi],
    [part], [{"role": "system", "content": [{"type": "text", "text": "sys part"}]}, part, hello, part], [{"role": "developer", "content": "D"}, hi],
]
cases = []
for path in sys.argv[1:]:
    source = open(path).read()
    switches = [{}] + [{name: on} for name in ("enable_thinking", "thinking") if name in source for on in (False, True)]
    for i, chat in enumerate(conversations):
        for use in (False, True):
            for prompt in (False, True):
                for switch in switches:
                    case = {"file": path, "conversation": i, "tools": use, "prompt": prompt, "variables": switch}
                    try:
                        case["rendered"] = utils.render_jinja_template(
                            [normal(copy.deepcopy(chat))], tools=tools if use else None, chat_template=source, add_generation_prompt=prompt,
                            bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>", **switch)[0][0]
                    except Exception as e:
                        case["error"] = f"{type(e).__name__}: {e}"[:200]
                    cases.append(case)
print(json.dumps({"tools": tools, "conversations": conversations, "cases": cases}))
