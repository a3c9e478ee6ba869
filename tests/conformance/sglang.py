#!/usr/bin/env python3
"""Ground truth for SGLang: the prompts and token ids that its own request code makes.

Runs the serving classes out of an unpacked wheel (`unzip sglang-0.5.23-*.whl 'sglang/*.py'`), with
stand-ins for all that isn't request code. Needs `transformers`, `openai`, `pydantic`, `fastapi`,
`orjson`, `msgspec` and `jsonschema` from PyPI. Writes one JSON line per case: model, API, body, how
the engine was started, and its token ids, or the text that it rendered; or that it refuses.

    sglang.py UNPACKED_WHEEL OUT.jsonl MODEL_DIRECTORY...
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import pathlib
import sys
import types

ROOT, OUT, *MODELS = (pathlib.Path(argument) for argument in sys.argv[1:])
SRT = "sglang.srt."
REAL = {SRT + name for name in (
    "entrypoints.anthropic.protocol", "entrypoints.anthropic.serving",
    "entrypoints.openai.chat_encoding", "entrypoints.openai.protocol",
    "entrypoints.openai.responses_adapters", "entrypoints.openai.serving_base",
    "entrypoints.openai.serving_chat", "entrypoints.openai.serving_responses",
    "function_call.utils", "parser.hunyuan_reasoning", "parser.jinja_template_utils",
    "parser.template_detection",
)}


RENDERED = []


def encoded(tokenizer, text, kwargs):
    RENDERED.append(text)
    return tokenizer.encode(text, **kwargs)


class Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub(name, (), {})

    def __or__(cls, other):
        return cls

    def __ror__(cls, other):
        return cls


class Stub(Anything):
    """A class of which nothing is known; also what it makes."""

    def __new__(mcs, name, bases, fields):
        fields = {
            "__init__": lambda self, *a, **k: None,
            "__call__": lambda self, *a, **k: a[0] if a else None,
            "__class_getitem__": classmethod(lambda cls, item: cls),
        } | fields
        return super().__new__(mcs, name, bases, fields)


class StandIn(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "get_serving":
            return lambda: SERVING
        if name == "get_model":
            return lambda: types.SimpleNamespace(context_length=None, revision=None)
        if name == "parallel_prompt_encode":
            return encoded
        if name[0].islower():
            return lambda *a, **k: types.SimpleNamespace()
        value = Stub(name, (), {})
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name in REAL:
            return importlib.util.spec_from_file_location(name, ROOT / (name.replace(".", "/") + ".py"))
        if name.split(".")[0] in ("sglang", "openai_harmony", "partial_json_parser"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


SERVING = types.SimpleNamespace(default_chat_template_kwargs=None, trust_request_chat_template=False)
sys.meta_path.insert(0, Finder())

import sglang.srt.environ as environ  # noqa: E402

environ.envs = types.SimpleNamespace(SGLANG_DEFAULT_THINKING=types.SimpleNamespace(get=lambda: False))

from transformers import AutoTokenizer  # noqa: E402
from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest  # noqa: E402
from sglang.srt.entrypoints.anthropic.serving import AnthropicServing  # noqa: E402
from sglang.srt.entrypoints.openai.protocol import (  # noqa: E402
    ChatCompletionRequest, CompletionRequest, ResponsesRequest,
)
from sglang.srt.parser.jinja_template_utils import (  # noqa: E402
    detect_jinja_template_content_format, jinja_template_may_reorder_tool_results,
)
from sglang.srt.parser.template_detection import detect_inline_system_support  # noqa: E402

serving_chat = importlib.import_module(SRT + "entrypoints.openai.serving_chat")
serving_responses = importlib.import_module(SRT + "entrypoints.openai.serving_responses")


def served(kind, tokenizer, defaults):
    """A serving class as `__init__` would leave it, of a text model without parsers."""
    self = kind.__new__(kind)
    template = tokenizer.chat_template
    self.tokenizer_manager = types.SimpleNamespace(
        tokenizer=tokenizer, model_config=types.SimpleNamespace(is_multimodal=False), served_model_name="m",
    )
    self.template_manager = types.SimpleNamespace(
        jinja_template_content_format=detect_jinja_template_content_format(template),
        jinja_template_may_reorder_tool_results=jinja_template_may_reorder_tool_results(template),
        reasoning_config=None, chat_template_name=None, python_chat_template=None,
    )
    self.default_chat_template_kwargs = defaults or {}
    self.tool_call_parser = self.reasoning_parser = self._reasoning_detector = None
    self.is_gpt_oss = self.is_gemma4 = self.is_minimax_m3 = False
    self.chat_encoding_spec = self._encoding_adapter = None
    self.supports_inline_system = detect_inline_system_support(template)
    self._tokenizer_auto_adds_specials = len(tokenizer.encode("")) > 0
    self._prompt_text_round_trip_is_lossy = False
    self._requires_response_template_detokenization = lambda request: False
    self._patch_reasoning_skip_special_tokens = lambda request: None
    self._takes_turn_grammar = lambda request, output_constrained: False
    return self


def chat_ids(chat, request):
    error = chat._validate_request(request)
    if error:
        raise ValueError(error)
    # `_convert_to_internal_request`, which has more to do afterwards.
    effort = request.chat_template_kwargs.pop("reasoning_effort", None) if request.chat_template_kwargs else None
    if effort is not None:
        request.reasoning_effort = effort
    return list(chat._process_messages(request, False).prompt_ids)


def ids(api, body, tokenizer, defaults):
    body = json.loads(json.dumps(body))
    chat = served(serving_chat.OpenAIServingChat, tokenizer, defaults)
    if api == "chat/completions":
        return chat_ids(chat, ChatCompletionRequest.model_validate(body))
    if api == "completions":
        request = CompletionRequest.model_validate(body)
        return tokenizer(request.prompt)["input_ids"] if isinstance(request.prompt, str) else request.prompt
    if api == "messages":
        anthropic = AnthropicServing(chat)
        request = AnthropicMessagesRequest.model_validate(body)
        return chat_ids(chat, anthropic._convert_to_chat_completion_request(request))
    responses = served(serving_responses.OpenAIServingResponses, tokenizer, defaults)
    request = ResponsesRequest.model_validate(body)
    # `_make_request`, without the engine.
    messages = responses._construct_input_messages(request)
    tools = responses._response_tools_to_chat_tools(request)
    choice = responses._chat_tool_choice(request.effective_tool_choice()) if tools else "none"
    made = ChatCompletionRequest(
        model=request.model, messages=messages, tools=tools or None, tool_choice=choice,
        reasoning_effort=request.reasoning.effort if request.reasoning else None,
        chat_template_kwargs=request.chat_template_kwargs,
    )
    return list(responses._process_messages(made, False).prompt_ids)


def user(content="Where is the <café>?"):
    return {"role": "user", "content": content}


def said(content):
    return {"role": "assistant", "content": content}


def text(content, kind="text"):
    return {"type": kind, "text": content}


SCHEMA = {"type": "object", "properties": {"title": {"type": "string", "enum": ["a", "b"]}, "year": {"type": ["integer", "null"]}}, "required": ["title"]}
FIND = {"type": "function", "function": {"name": "find", "description": "Finds", "parameters": SCHEMA}}
NOW = {"function": {"parameters": None, "name": "now"}}
STRICT = {"type": "function", "defer_loading": True, "function": {"strict": True, "x": 1, "name": "s", "description": None}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": "{\"year\": 1999, \"title\": \"Café <1>\", \"x\": [1.0, null]}"}}
SYSTEM = {"role": "system", "content": "Be kind."}


def chats():
    def body(*messages, **more):
        return {"model": "m", "messages": list(messages)} | more

    yield body(user())
    yield body(SYSTEM, user("  x \n"), said(" y "), user("\n"))
    yield body({"role": "System", "content": "s", "name": "n"}, {"role": "developer", "content": "d"}, user())
    yield body(user([text("a"), text("b")]), said([text("c"), {"type": "thinking", "thinking": "t"}, text("d")]), user())
    yield body(user([text("")]), said([]), user())
    yield body(user(), said("Here."))
    yield body(user(), said([text("Here.")]))
    yield body(user(), {"role": "assistant", "content": None, "tool_calls": [CALL]})
    yield body(user(), said("It is"), continue_final_message=True)
    yield body(user(), said("<s> It is"), continue_final_message=True)
    yield body(user(), said(""), continue_final_message=True)
    yield body(user("q"), continue_final_message=True, add_generation_prompt=False)
    yield body(user(), add_generation_prompt=False, add_special_tokens=True, chat_template="x")
    for choice in ("auto", "none", "required", None, {"type": "function", "function": {"name": "now"}}):
        yield body(user(), tools=[FIND, NOW], tool_choice=choice)
    yield body(user(), tools=[STRICT, FIND])
    yield body(user(), tools=[])
    yield body(SYSTEM, user(), tools=[FIND], tool_choice={"type": "function", "function": {"name": "other"}})
    turn = [user(), {"role": "assistant", "content": None, "reasoning_content": "hm", "reasoning": "no", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Shelf 7"}]
    yield body(*turn, tools=[FIND])
    yield body(*turn[:2], {"role": "tool", "tool_call_id": "call_1", "content": [text("Shelf"), text("7")]}, user("Thanks"))
    yield body(user(), {"role": "assistant", "content": "c", "tool_calls": [{"index": 3, "function": {"name": "now", "arguments": {}}}]}, user())
    yield body(user(), {"role": "assistant", "tool_calls": [{"function": {"name": "now", "arguments": ""}}]}, user())
    yield body(user(), {"role": "assistant", "tool_calls": [{"function": {"name": "now", "arguments": "[1]"}}]}, user())
    yield body(user(), {"role": "assistant", "content": "4", "reasoning_content": "easy"}, user("Sure?"))
    for more in ({"reasoning_effort": "low"}, {"reasoning_effort": "none"}, {"reasoning_effort": 0.5}, {"reasoning": {"effort": "none"}},
                 {"reasoning": {"enabled": True}}, {"reasoning_effort": "most"}, {"chat_template_kwargs": {"enable_thinking": False}},
                 {"chat_template_kwargs": {"enable_thinking": None, "reasoning_effort": "high"}},
                 {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}):
        yield body(user(), **more)
    yield body({"role": "user", "content": "x", "name": "n"}, {"role": "assistant", "content": "y", "name": "m", "phase": "commentary"}, user())
    yield body(user(), {"role": "function", "name": "f", "content": "z"}, user())
    yield body({"role": "critic", "content": "x"}, user())
    yield body({"role": "user", "content": None})
    yield body(user([text("a", "input_text")]))


def messages():
    def body(*messages, **more):
        return {"model": "m", "max_tokens": 9, "messages": list(messages)} | more

    use = {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"year": 1999, "title": "Café <1>", "x": [1.0, None]}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Shelf 7"}
    tool = {"name": "find", "description": "Finds", "input_schema": {"properties": {"a": {"type": "string"}}}}
    yield body(user())
    yield body(user(), system=" Be kind. ")
    yield body(user(), system="  ")
    yield body(user(), said("Here."), user("x"), system=[text("Be kind."), text(""), text(" And brief.")])
    yield body(user(), said("Here."))
    yield body(user([text("one"), text("two")]), said([text("x")]), user())
    yield body(user(), {"role": "system", "content": " Later. "}, said("Here."), {"role": "system", "content": [text(" More. "), text("")]}, user(), system="First.")
    yield body(user(), said([text("It is"), use]), user([text("pre"), result, text("post")]), tools=[tool])
    yield body(user(), said([use]), user([result | {"content": [text("a"), text(""), text("b")]}]), tools=[tool | {"strict": True, "defer_loading": False}])
    yield body(user(), said([use]), user([result | {"content": None}]), tools=[tool], tool_choice={"type": "none"})
    yield body(user(), said([]), user([text("")]))
    yield body(user(), tools=[tool, tool | {"name": "now"}], tool_choice={"type": "tool", "name": "now"})
    yield body(user(), chat_template_kwargs={"enable_thinking": False}, cache_salt="s")


def responses():
    def body(input, **more):
        return {"model": "m", "input": input} | more

    call = {"type": "function_call", "call_id": "call_1", "name": "find", "arguments": "{\"year\": 1999, \"title\": \"Café <1>\"}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "Shelf 7"}
    answer = {"type": "message", "role": "assistant", "content": [text("Here.", "output_text"), text("There.", "output_text")]}
    thought = {"type": "reasoning", "summary": [text("short", "summary_text"), text("er", "summary_text")], "content": [text("long", "reasoning_text")]}
    tool = {"type": "function", "name": "find", "description": "Finds", "parameters": SCHEMA}
    yield body("Where?")
    yield body("Where?", instructions="Be kind.")
    yield body([user()], instructions="")
    yield body([{"role": "developer", "content": "d"}, user(), said("Here."), {"role": "developer", "content": [text("e", "input_text")]}, user()], instructions="i")
    yield body([{"role": "user", "content": [text("one", "input_text"), text("two", "input_text")]}])
    yield body([user(), answer])
    yield body([user(), answer, said("x"), said([text("y", "output_text")]), user()])
    yield body([user(), said("x"), said("y"), user()])
    yield body([user(), thought, call, output], tools=[tool])
    yield body([user(), thought, said("a"), call, call | {"call_id": "call_2", "arguments": ""}, output, output | {"call_id": "call_2", "output": [text("a", "input_text"), text("b", "input_text")]}, user()], tools=[tool | {"strict": True}, {"type": "web_search"}])
    yield body([user(), {"type": "reasoning", "summary": []}, user()])
    yield body("Where?", tools=[tool], tool_choice="none")
    yield body("Where?", tools=[tool, tool | {"name": "now"}], tool_choice={"type": "function", "name": "now"})
    yield body("Where?", tools=[tool], tool_choice={"type": "web_search"})
    for reasoning in ({"effort": "low"}, {"effort": "none"}, {"summary": "auto"}, {"effort": None}):
        yield body("Where?", reasoning=reasoning)
    yield body("Where?", reasoning={"effort": "low"}, chat_template_kwargs={"reasoning_effort": "high", "enable_thinking": False})


def cases():
    for body in chats():
        yield "chat/completions", body
    for body in messages():
        yield "messages", body
    for body in responses():
        yield "responses", body
    yield "completions", {"model": "m", "prompt": "Where is the <café>?", "add_special_tokens": False}
    yield "completions", {"model": "m", "prompt": [1, 2, 3]}


# Templates that show all that they are given; the second goes over the parts of contents, the third
# takes functions alone, the fourth wants the system first.
SHOW = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}{{ tools | tojson }} {{ reasoning_effort }} {{ enable_thinking }} {{ thinking }}"
TEMPLATES = [
    SHOW,
    "{% for message in messages %}{% for part in message.content %}{% endfor %}{% endfor %}" + SHOW,
    "{% for t in tools or [] %}{{ t.name + '' }}{{ t | tojson }}{% endfor %}" + SHOW,
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}{% endfor %}" + SHOW,
]
DEFAULTS = {"enable_thinking": False, "reasoning_effort": "high"}


def main():
    with OUT.open("w") as file:
        for model in MODELS:
            tokenizer = AutoTokenizer.from_pretrained(model)
            own = tokenizer.chat_template
            for template in [None] + (TEMPLATES if model == MODELS[0] else []):
                tokenizer.chat_template = template or own
                write(file, model.name, tokenizer, template, None)
            tokenizer.chat_template = SHOW
            write(file, model.name, tokenizer, SHOW, DEFAULTS)


def write(file, model, tokenizer, template, defaults):
    for api, body in cases():
        only = {TEMPLATES[2]: "tools", TEMPLATES[3]: "system"}.get(template, "")
        plain = "tools" in body or api == "completions"
        if plain and defaults or api == "completions" and template or only not in json.dumps(body):
            continue
        case = {"model": model, "api": api, "body": body}
        case |= {"template": template} if template else {}
        case |= {"defaults": defaults} if defaults else {}
        RENDERED.clear()
        try:
            made = ids(api, body, tokenizer, defaults)
            if template and not body.get("continue_final_message"):
                case["text"] = RENDERED[-1]
            else:
                case["ids"] = made
        except Exception as error:  # The engine refuses, and so must we.
            if isinstance(error, (AttributeError, NameError, ImportError, IndexError)):
                raise
            case["refused"] = True
        print(json.dumps(case, ensure_ascii=False), file=file)


main()
