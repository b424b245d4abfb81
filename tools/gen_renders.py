#!/usr/bin/env python3
"""Records what Python's jinja2, set up as transformers sets it up, makes of chat templates.

    pip install jinja2==3.1.6
    tools/gen_renders.py

Writes crates/strata-engine/tests/data/templates/renders.json: a list of
    name      of the case
    template  a file beside renders.json, or
    source    the template itself
    messages, variables
    text      what it renders to, or
    refused   the message of raise_exception
`strftime_now` always tells 2026-02-03 04:05:06.
"""

import datetime
import json
import pathlib

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).resolve().parent.parent / "crates/strata-engine/tests/data"
NOW = datetime.datetime(2026, 2, 3, 4, 5, 6)


class Refused(Exception):
    pass


def raise_exception(message):
    raise Refused(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


ENVIRONMENT = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
ENVIRONMENT.filters["tojson"] = tojson
ENVIRONMENT.globals["raise_exception"] = raise_exception
ENVIRONMENT.globals["strftime_now"] = NOW.strftime

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather <now> & \"soon\" — it's 7 °C",
            "parameters": {
                "type": "object",
                "properties": {
                    "zone": {"type": "string", "enum": ["a", "b"]},
                    "city": {"type": "string"},
                    "days": {"type": "integer", "default": 3, "minimum": 1.0, "maximum": 1e16, "step": 1e-05},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "stop", "parameters": {}}},
]

SYSTEM = {"role": "system", "content": "Be brief."}
HI = {"role": "user", "content": "Hi, what's new?"}
CALL = {
    "role": "assistant",
    "content": "Let me see.",
    "reasoning_content": "\nThey ask for\nthe weather.\n",
    "tool_calls": [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "arguments": {"city": "Kyōto \"\n\t\\\x01\x7f", "days": 2, "exact": True, "near": None, "at": [1.5, 2.0], "u": {}},
            },
        },
        {"type": "function", "function": {"name": "stop", "arguments": "{\"raw\": 1}"}},
    ],
}
RESULTS = [{"role": "tool", "content": "<result>sunny</result>"}, {"role": "tool", "content": "ok"}]
OLD = {"role": "assistant", "content": "<think>\nold thought\n</think>\n\nOld answer."}
PARTS = {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}
MINI = json.loads((HERE / "strata-mini/tokenizer_config.json").read_text())["chat_template"]


def chat(name, messages, generate=True, template="tools.jinja", **variables):
    return {
        "name": name,
        **({"template": template} if template.endswith(".jinja") else {"source": template}),
        "messages": messages,
        "variables": {"tools": None, "documents": None, "add_generation_prompt": generate, **variables},
    }


def alone(name, source, messages=(), **variables):
    return chat(name, list(messages), False, source, **variables)


CASES = [
    chat("mini", [HI], template=MINI),
    chat("mini, system, no prompt", [SYSTEM, HI, OLD, HI], False, MINI),
    chat("hello", [HI]),
    chat("system, old thoughts dropped", [SYSTEM, HI, OLD, HI]),
    chat("no thinking", [HI], enable_thinking=False),
    chat("thinking asked for", [HI], enable_thinking=True),
    chat("parts", [PARTS], False),
    chat("tools", [SYSTEM, HI], tools=TOOLS),
    chat("tools without system", [HI], tools=TOOLS),
    chat("call", [SYSTEM, HI, CALL], False, tools=TOOLS),
    chat("results", [SYSTEM, HI, OLD, HI, CALL, *RESULTS], tools=TOOLS),
    chat("results and answer", [HI, CALL, *RESULTS, {"role": "assistant", "content": "Sunny."}, HI]),
    chat("empty", []),
    chat("late system", [HI, SYSTEM]),
    chat("image", [{"role": "user", "content": [{"type": "image", "url": "x"}]}]),
    chat("unknown role", [{"role": "critic", "content": "no"}]),
    alone("json indent", "{{ x | tojson(indent=4) }}", x={"b": [1, {"a": []}, [], {}], "a": "é\U0001f600/</script>"}),
    alone("json ascii", "{{ x | tojson(ensure_ascii=True) }}", x="é\U0001f600\x7f\u2028'&<>"),
    alone("json sorted", "{{ x | tojson(sort_keys=True) }}", x={"b": {"d": 1, "c": 2}, "a": 0, "B": -1}),
    alone("json separators", "{{ x | tojson(separators=(',', ':')) }}", x={"b": [1, 2], "a": None}),
    alone("json separators and indent", "{{ x | tojson(separators=(' ,', ' = '), indent=1) }}", x={"b": [1, 2], "a": None}),
    alone(
        "json numbers",
        "{{ x | tojson }}",
        x=[0.1, 1.0, -0.0, 1e15, 1e16, 1.5e300, 1e-4, 1e-5, 1.25e-7, 123456789.125, 2**63, -(2**63), 5e-324, 1e100],
    ),
    alone("json in text", "{{ 'x=' ~ ({'a': 1} | tojson) + '!' }}"),
    alone("none, booleans, numbers", "{{ none }} {{ true }} {{ false }} {{ 1.0 }} {{ 1 }} {{ x }} {{ messages.y }}|{{ 7 // 2 }} {{ 2 ** 5 }} {{ -7 % 3 }}"),
    alone("lists", "{{ [1, 'a', none, [true]] }} {{ {'a': 1, 'b': 'c'} }}"),
    alone("time", "{{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%d %b %Y, %A %H:%M:%S %j %y %B %p %I') }}"),
    alone("time, if it can", "{% if strftime_now is defined %}{{ strftime_now('%d %B') }}{% else %}no{% endif %}"),
    alone("break and continue", "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
    alone(
        "whitespace",
        "{% if true %}\n  a\n  {% if true %}\n    b\n  {% endif %}\n{# note #}\n{{ 'c' }}\n{% endif %}\n  {%- if true -%}  d  {%- endif +%}\n\ne\n\n",
    ),
    alone("no trailing newline", "a\n"),
    alone(
        "strings",
        "{{ ' a b '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'a,b,c'.split(',', 1) | join('+') }}|{{ ' a  b '.split() | join('+') }}"
        "|{{ 'abc'.startswith('ab') }}|{{ 'abc'.endswith(('x', 'c')) }}|{{ 'aXbX'.replace('X', '-') }}|{{ 'hello world'.title() }}"
        "|{{ 'abc'.upper() }}{{ 'ABC'.lower() }}|{{ 'hELLO'.capitalize() }}|{{ 'abcb'.find('b') }}|{{ 'abcb'.count('b') }}"
        "|{{ ', '.join(['a', 'b']) }}|{{ 'a\nb'.splitlines() | length }}|{{ '12'.isdigit() }}|{{ 'abc'[1:] }}{{ 'abc'[::-1] }}{{ 'abc'[-1] }}",
    ),
    alone(
        "dictionaries",
        "{% set d = {'b': 1, 'a': 2} %}{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}|{{ d.keys() | list | join }}"
        "|{{ d.values() | sum }}|{{ d.get('z', 'none') }}|{{ d.get('a') }}|{{ 'a' in d }}|{{ d | length }}|{% for k, v in d | dictsort %}{{ k }}{% endfor %}"
        "|{% for k, v in d | items %}{{ k }}{% endfor %}",
    ),
    alone(
        "filters",
        "{{ [3, 1, 2] | sort | join(',') }}|{{ [1, 2, 3] | map('string') | join }}|{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
        "|{{ messages | map(attribute='role') | join(' ') }}|{{ [1, 2] | first }}{{ [1, 2] | last }}|{{ nope | default('d') }}|{{ '' | default('e', true) }}"
        "|{{ messages | rejectattr('role', 'equalto', 'user') | list | length }}|{{ 'a' | indent(2, true) }}|{{ [1, none, 2] | select | list }}",
        [SYSTEM, HI],
    ),
    alone(
        "macros, namespace, loop",
        "{% macro f(x, y='-') %}{{ y }}{{ x }}{{ y }}{% endmacro %}{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + loop.index %}"
        "{{ f(m.role) }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.length }}{% else %}none{% endfor %}{{ ns.n }}{{ f(1, y='=') }}"
        "{{ 'yes' if ns.n > 2 else 'no' }}{% for x in [1, 2, 3] if x != 2 %}{{ x }}{% endfor %}",
        [SYSTEM, HI],
    ),
    alone("set block", "{% set x %}a{{ 1 }}{% endset %}{{ x | upper }}{{ x | length }}"),
    alone("tests", "{{ 1 is number }}{{ 'a' is string }}{{ [] is sequence }}{{ {} is mapping }}{{ none is none }}{{ x is defined }}{{ true is boolean }}{{ 2 is even }}{{ 'a' in ['a'] }}{{ 1 is not none }}{{ [] is iterable }}{{ 1 == 1.0 }}"),
    alone("refused in a macro", "{% macro f() %}{{ raise_exception('not ' ~ 'this') }}{% endmacro %}a{{ f() }}"),
]


def render(case):
    source = case.get("source") or (HERE / "templates" / case["template"]).read_text()
    try:
        text = ENVIRONMENT.from_string(source).render(messages=case["messages"], **case["variables"])
        return case | {"text": text}
    except Refused as error:
        return case | {"refused": str(error)}


lines = ",\n".join(json.dumps(render(case), ensure_ascii=False) for case in CASES)
(HERE / "templates/renders.json").write_text(f"[\n{lines}\n]\n")
