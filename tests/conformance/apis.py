#!/usr/bin/env python3
"""Ground truth for /v1/responses and /v1/messages: the chat that vLLM makes of them.

Runs vLLM's own conversion out of an unpacked wheel (`unzip vllm-0.32.0-*.whl 'vllm/*.py'`), with
stand-ins for all that needs a GPU build. Needs `openai`, `pydantic`, `fastapi`, `jinja2` and
`partial_json_parser` from PyPI. Writes one JSON line per case: the body, and the body of a
/v1/chat/completions request that gives the same prompt.

    apis.py UNPACKED_WHEEL OUT.jsonl
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import pathlib
import sys
import types

ROOT, OUT = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
REAL = {
    "vllm.entrypoints.anthropic.protocol",
    "vllm.entrypoints.anthropic.serving",
    "vllm.entrypoints.openai.responses.utils",
    "vllm.entrypoints.openai.responses.protocol",
}


class StandIn(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name.startswith("VLLM_"):
            return 16
        if name[0].islower():
            return lambda *a, **k: types.SimpleNamespace(
                warning=print, debug=lambda *a: None, info=print, warning_once=print
            )
        return type(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name in REAL:
            file = ROOT / (name.replace(".", "/") + ".py")
            return importlib.util.spec_from_file_location(name, file)
        if name.split(".")[0] in ("vllm", "openai_harmony"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())

import pydantic  # noqa: E402


class Function(pydantic.BaseModel):
    """vllm/entrypoints/generate/base/protocol.py, FunctionDefinition."""

    name: str
    description: str | None = None
    parameters: dict | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ToolsParam:
    def __init__(self, type="function", function=None):
        self.function = function

    @classmethod
    def model_validate(cls, data):
        return cls(function=Function.model_validate(data["function"]))

    def model_dump(self):
        function = self.function.model_dump()
        for name in ("strict", "defer_loading"):
            if function[name] is None:
                del function[name]
        return {"type": "function", "function": function}


class ChatRequest:
    tools = tool_choice = reasoning_effort = None

    def __init__(self, **fields):
        self.__dict__.update(fields)


import vllm.entrypoints.openai.chat_completion.protocol as chat_protocol  # noqa: E402
import vllm.entrypoints.generate.base.protocol as base_protocol  # noqa: E402
import vllm.entrypoints.serve.engine.protocol as engine_protocol  # noqa: E402
import vllm.sampling_params as sampling  # noqa: E402
import vllm.tool_parsers.utils as tool_utils  # noqa: E402
import vllm.utils as utils  # noqa: E402

chat_protocol.ChatCompletionRequest = ChatRequest
chat_protocol.ChatCompletionToolsParam = ToolsParam
chat_protocol.ChatCompletionMessageParam = dict
base_protocol.FunctionDefinition = Function
base_protocol.MMPayload = str
base_protocol.TopLogprobsParam = int
base_protocol.StopParam = list
base_protocol.resolve_return_mm_kwargs_alias = lambda data: data
base_protocol.PerRequestMetrics = dict
base_protocol.StreamOptions = type("StreamOptions", (), {"model_validate": lambda data: data})
engine_protocol.OpenAIBaseModel = type("OpenAIBaseModel", (pydantic.BaseModel,), {})
sampling.StructuredOutputsParams = dict
utils.random_uuid = lambda: "0"
tool_utils.CUSTOM_TOOL_INPUT_KEY = "input"
tool_utils.flat_namespace_tool_name = lambda namespace, name: f"{namespace}__{name}"
import openai_harmony  # noqa: E402

openai_harmony.Message = dict
import vllm.renderers.chat_utils as chat_utils  # noqa: E402

chat_utils.ChatCompletionMessageParam = dict

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest  # noqa: E402
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages  # noqa: E402

responses_utils = importlib.import_module("vllm.entrypoints.openai.responses.utils")

from vllm.entrypoints.openai.responses.protocol import ResponsesRequest  # noqa: E402


def plain(value):
    if isinstance(value, pydantic.BaseModel):
        return plain(value.model_dump())
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)) or type(value).__name__ == "ValidatorIterator":
        return [plain(inner) for inner in value]
    return value


def of_messages(body, merge):
    request = AnthropicMessagesRequest.model_validate(json.loads(json.dumps(body)))
    chat = AnthropicServingMessages.to_chat_completion_request(request, merge_inline_system=merge)
    out = {"model": body["model"], "messages": plain(chat.messages)}
    if chat.tools is not None:
        out["tools"] = [tool.model_dump() for tool in chat.tools]
    if chat.reasoning_effort is not None:
        out["reasoning_effort"] = chat.reasoning_effort
    if chat.chat_template_kwargs:
        out["chat_template_kwargs"] = chat.chat_template_kwargs
    return out


def of_responses(body):
    request = ResponsesRequest.model_validate(json.loads(json.dumps(body)))
    out = {
        "model": body["model"],
        "messages": plain(
            responses_utils.construct_input_messages(
                request_instructions=request.instructions, request_input=request.input
            )
        ),
    }
    tools = []
    for tool in request.tools:
        # vllm/tool_parsers/utils.py, get_function_tools.
        if tool.type == "function":
            tools.append(tool.model_dump())
        elif tool.type == "custom":
            tools.append({
                "type": "function", "name": tool.name, "description": tool.description,
                "parameters": {
                    "type": "object",
                    "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
                    "required": ["input"],
                    "additionalProperties": False,
                },
            })
    if request.tools:
        out["tools"] = [
            responses_utils.convert_tool_responses_to_completions_format(tool).model_dump() for tool in tools
        ]
    if request.reasoning is not None and request.reasoning.effort is not None:
        out["reasoning_effort"] = request.reasoning.effort
    if request.chat_template_kwargs:
        out["chat_template_kwargs"] = request.chat_template_kwargs
    if responses_utils.should_continue_final_message(request.input):
        out |= {"continue_final_message": True, "add_generation_prompt": False}
    return out


TEXT = "Where is the <café>?"
SCHEMA = {"properties": {"year": {"type": "integer"}, "title": {"type": "string"}}, "required": ["title"]}
USE = {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"year": 1999, "title": "Café <1>", "x": [1.0, None]}}


def block(text):
    return {"type": "text", "text": text}


def messages_bodies():
    def body(messages, **more):
        return {"model": "m", "max_tokens": 9, "messages": messages} | more

    user = {"role": "user", "content": TEXT}
    said = {"role": "assistant", "content": "Here."}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Shelf 7"}
    yield body([user], system="")
    yield body([user], system="Be kind.")
    yield body([user, said, user], system=[block("Be kind."), block("x-anthropic-billing-header: 1"), block(""), block(" And brief.")])
    yield body([user], system="x-anthropic-billing-header: 7\nBe kind.")
    yield body([{"role": "user", "content": [block("one"), block("two"), block("")]}, {"role": "assistant", "content": [block("x")]}, user], system="s")
    yield body([user, {"role": "assistant", "content": [{"type": "thinking", "thinking": "a", "signature": "s"}, {"type": "redacted_thinking", "data": "zz"}, {"type": "thinking", "thinking": "b"}, block("It is"), USE]}, {"role": "user", "content": [result, block("Thanks")]}], system="s",
               tools=[{"name": "find", "description": "Finds", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}])
    yield body([user, {"role": "assistant", "content": [USE, USE | {"id": "toolu_2", "input": {}}]}, {"role": "user", "content": [result, {"type": "tool_result", "tool_use_id": "toolu_2", "content": [block("a"), block("b")], "is_error": True}]}], system="s",
               tools=[{"name": "find", "input_schema": {"type": "object"} | SCHEMA, "strict": True, "defer_loading": False}])
    yield body([user, {"role": "assistant", "content": [{"type": "tool_result", "content": "Shelf 7"}, {"type": "tool_result"}]}], system="s")
    yield body([user, {"role": "user", "content": [block("")]}, {"role": "user", "content": []}, {"role": "assistant", "content": []}], system="s")
    yield body([user, {"role": "system", "content": "Later."}, said, {"role": "system", "content": [block("x-anthropic-billing-header: 2"), block("More.")]}, user], system="First.")
    yield body([user], system="s", output_config={"effort": "low"})
    yield body([user], system="s", thinking={"type": "disabled"}, output_config={"effort": "high"})
    yield body([user], system="s", thinking={"type": "adaptive"}, chat_template_kwargs={"enable_thinking": False}, cache_salt="salt", stream=True)
    yield body([user], system="s", tools=[], tool_choice={"type": "auto"})


def responses_bodies():
    def body(input, **more):
        return {"model": "m", "input": input} | more

    user = {"role": "user", "content": TEXT}
    parts = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Here."}, {"type": "output_text", "text": "Or there."}]}
    call = {"type": "function_call", "call_id": "call_1", "name": "find", "arguments": "{\"year\": 1999, \"title\": \"Café <1>\"}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "Shelf 7"}
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}], "content": [{"type": "reasoning_text", "text": "long"}]}
    yield body(TEXT)
    yield body(TEXT, instructions="Be kind.", max_output_tokens=3)
    yield body([user], instructions="")
    yield body([{"role": "developer", "content": "Be kind."}, parts, {"role": "assistant", "content": "Here."}, user])
    yield body([user, answer, user], instructions="i")
    yield body([user, thought, call, output], tools=[{"type": "function", "name": "find", "description": "Finds", "parameters": SCHEMA, "strict": True}])
    yield body([user, {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "short"}]}, answer, call, call | {"call_id": "call_2", "arguments": "{}"}, output, output | {"call_id": "call_2"}, user],
               tools=[{"type": "function", "name": "find", "parameters": None, "strict": None}, {"type": "web_search_preview"}])
    yield body([user, thought, thought, {"type": "reasoning", "summary": []}, user])
    yield body([user, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, user])
    yield body([user, thought, {"role": "assistant", "content": "a"}, call, {"role": "assistant", "content": "b"}])
    yield body([user, {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*** <é> \"x\""}, {"type": "custom_tool_call_output", "call_id": "c", "output": "Done"}],
               tools=[{"type": "custom", "name": "patch", "description": "Applies"}])
    yield body([user, answer | {"status": "incomplete", "id": "msg_1"}])
    yield body(TEXT, reasoning={"effort": "low"}, chat_template_kwargs={"x": 1}, cache_salt="s")
    yield body([user, output | {"output": [{"type": "input_text", "text": "Shelf"}, {"type": "input_text", "text": "7"}]}])


def main():
    with OUT.open("w") as file:
        def write(api, body, chat, **more):
            print(json.dumps({"api": api, "body": body, "chat": chat} | more, ensure_ascii=False), file=file)
        for body in messages_bodies():
            chat, merged = of_messages(body, False), of_messages(body, True)
            write("messages", body, chat, **({"merged": merged} if merged != chat else {}))
        for body in responses_bodies():
            write("responses", body, of_responses(body))


main()
