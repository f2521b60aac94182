"""Declared tools, taken off the turn in which a template writes them.

    qwen3      # Tools ... <tools>\\n{JSON}\\n{JSON}\\n</tools> ...      a system turn, behind its own text
    qwen3.5    # Tools ... <tools>\\n{JSON}\\n</tools> ... </IMPORTANT>  a system turn, before its own text
    glm        # Tools ... <tools>\\n{JSON}\\n</tools> ... </tool_call>  a system turn of its own
    minimax    # Tools ... <tools>\\n<tool>{JSON}</tool>\\n</tools> ...  a system turn, behind its own text
    deepseek   ## Tools ... ### NAME\\nDescription: ...                 V3.1, behind the system text
    llama      ... Do not use variables.\\n\\n{JSON}\\n\\n{JSON}\\n\\n      system turn, or before the first question
    harmony    # Tools\\n\\n## functions\\n\\nnamespace functions {...}    TypeScript, kept as it is

A declaration is taken off only where the template's own words stand around it and all of it can be read; else it stays
in the text, where the model saw it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

Taken = tuple[str, list[Any]]  # the text without the declaration, and the tools

_MAY_CALL = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>\n"
)
# How a declaration begins, what ends the tools in it, and how it ends.
_HEADS = {
    "qwen3": (_MAY_CALL, "\n</tools>\n\nFor each function call, return a json object ", "</tool_call>"),
    "glm": (_MAY_CALL, "\n</tools>\n\nFor each function call, output the function name and arguments ", "</tool_call>"),
    "qwen3.5": (
        "# Tools\n\nYou have access to the following functions:\n\n<tools>\n",
        "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format ",
        "</IMPORTANT>",
    ),
    "minimax": (
        "# Tools\nYou may call one or more tools to assist with the user query.\n"
        "Here are the tools available in JSONSchema format:\n\n<tools>\n",
        "\n</tools>\n\nWhen making tool calls, ",
        "</minimax:tool_call>",
    ),
    "deepseek": (
        "## Tools\nYou have access to the following tools:\n",
        "\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n",
        "chain them directly without separators or spaces",
    ),
    "harmony": ("# Tools\n\n## functions\n\n", "\n\n} // ", "namespace functions"),
}
MAX_WORDS = 2000  # the templates' own words behind the tools are some hundred characters

_DEEPSEEK_TOOL = re.compile(
    r"\n### ([^\n]+)\n(?:Description: ((?:(?!\n### ).)*?)\n)?\nParameters: (\{[^\n]*\})\n", re.DOTALL
)
_LLAMA = re.compile(
    r"(?:You have access to the following functions\. To call a function, please respond with JSON for a function "
    r"call\.|\AGiven the following functions, please respond with a JSON for a function call with its proper arguments "
    r"that best answers the given prompt\.)\s*Respond in the format \{\"name\": function name, \"parameters\": "
    r"dictionary of argument name and its value\}\.\s*Do not use variables\.\n\n"
)


def take(grammar: str, text: str) -> Taken | None:
    """Return the text without what declares tools, and the tools; None where nothing is declared for sure."""
    found = _WAYS[grammar](text) if grammar in _WAYS else None
    return found if found is not None and found[1] else None


def _parts(form: str, text: str) -> tuple[str, str, str] | None:
    """What stands before the declaration, the tools in it, and what stands behind it; each is searched once."""
    head, middle, tail = _HEADS[form]
    start = text.find(head)
    stop = text.find(middle, start)
    end = text.find(tail, stop + len(middle)) if form == "qwen3.5" else text.rfind(tail, stop)
    before = text[: max(start, 0)]
    if (
        start < 0
        or stop < start + len(head)
        or not 0 <= end - stop < MAX_WORDS
        or not (not before or before.endswith("\n\n"))
    ):
        return None
    behind = text[end + len(tail) :]
    if behind.strip() and not (form == "qwen3.5" and behind.startswith("\n\n")):
        return None
    return before.removesuffix("\n\n"), text[start + len(head) : stop], behind.strip() and behind[2:]


def _tool(value: str) -> dict[str, Any] | None:
    """A declared tool in JSON, or None."""
    try:
        tool = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return tool if _is_tool(tool) else None


def _is_tool(tool: Any) -> bool:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _lines(form: str, text: str) -> Taken | None:
    """One tool a line, in tags for MiniMax."""
    parts = _parts(form, text)
    if parts is None:
        return None
    before, body, behind = parts
    tools = [_tool(line.removeprefix("<tool>").removesuffix("</tool>")) for line in body.split("\n")]
    return None if None in tools else (before + behind, tools)


def _hermes(text: str) -> Taken | None:
    return _lines("qwen3", text) or _lines("qwen3.5", text)


def _glm(text: str) -> Taken | None:
    return _lines("glm", text)


def _minimax(text: str) -> Taken | None:
    """The template writes only the inside of each function."""
    taken = _lines("minimax", text)
    return (taken[0], [{"type": "function", "function": tool} for tool in taken[1]]) if taken else None


def _deepseek(text: str) -> Taken | None:
    parts = _parts("deepseek", text)
    if parts is None or _DEEPSEEK_TOOL.sub("", parts[1]).strip():
        return None
    tools: list[Any] = []
    for name, description, parameters in _DEEPSEEK_TOOL.findall(parts[1]):
        try:
            read = json.loads(parameters)
        except (ValueError, RecursionError):
            return None
        function = {"name": name, **({"description": description} if description else {}), "parameters": read}
        tools.append({"type": "function", "function": function})
    return parts[0], tools


def _llama(text: str) -> Taken | None:
    match = _LLAMA.search(text)
    if match is None:
        return None
    at, tools = match.end(), []
    while text.startswith("{", at):
        try:
            tool, end = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        if not _is_tool(tool) or not text.startswith("\n\n", end):
            break
        tools.append(tool)
        at = end + 2
    return text[: match.start()] + text[at:], tools


def _harmony(text: str) -> Taken | None:
    parts = _parts("harmony", text)
    if parts is None or not parts[1].startswith("namespace functions {"):
        return None
    return parts[0], [parts[1] + "".join(_HEADS["harmony"][1:])]


_WAYS: dict[str, Callable[[str], Taken | None]] = {
    "hermes": _hermes,
    "glm": _glm,
    "minimax": _minimax,
    "deepseek": _deepseek,
    "llama": _llama,
    "harmony": _harmony,
}
