"""What agents leave behind -> messages as they were sent.

    .traj      [{"action": "ls", "observation": "...", "response": "...", "query": [messages]}, ...]     SWE-agent
    history    [{"source": "user", "action": "message", "args": {"content": "Fix it"}},
                {"source": "agent", "action": "run", "args": {"command": "ls", "thought": "I look"}},
                {"source": "environment", "observation": "run", "content": "a.py"}]                       OpenHands

A trajectory of plain messages (nebius, OpenHands' data sets) passes as it is.
"""

from __future__ import annotations

import json
from typing import Any


def messages_in(steps: list[Any], history: Any) -> list[Any]:
    """Return the messages of a trajectory: those of its last query, of `history`, or made of its steps."""
    last = steps[-1] if steps and isinstance(steps[-1], dict) else {}
    for key in ("query", "messages"):  # the first since SWE-agent 1.1.0
        if isinstance(last.get(key), list) and last[key]:
            answer = last.get("response")
            return [*last[key], *([{"role": "assistant", "content": answer}] if isinstance(answer, str) else [])]
    if is_events(steps):
        return of_events(steps)
    if not all(isinstance(s, dict) and "role" not in s and "from" not in s and "action" in s for s in steps):
        return steps
    if isinstance(history, list) and history and isinstance(history[0], dict) and "role" in history[0]:
        return history
    out: list[Any] = []
    for step in steps:
        said = next((step[k] for k in ("response", "thought", "action") if isinstance(step.get(k), str)), "")
        out.append({"role": "assistant", "content": said})
        if isinstance(step.get("observation"), str) and step["observation"]:
            out.append({"role": "user", "content": step["observation"]})
    return out


def is_event(value: Any) -> bool:
    """Return whether a value is an event of OpenHands."""
    return (
        isinstance(value, dict)
        and value.get("source") in ("user", "agent", "environment")
        and "role" not in value
        and ("action" in value or "observation" in value)
    )


def is_events(value: Any) -> bool:
    """Return whether a value is a list that begins with an event."""
    return isinstance(value, list) and bool(value) and is_event(value[0])


def of_events(events: list[Any]) -> list[Any]:
    """Return messages for a list of events; those that hold no text (a change of state) are left out."""
    out: list[Any] = []
    for event in events:
        if not isinstance(event, dict):
            return events  # the caller names what stands there instead
        args: dict[str, Any] = event["args"] if isinstance(event.get("args"), dict) else {}
        if "observation" in event:
            if isinstance(event.get("content"), str) and event["content"]:
                out.append({"role": "tool", "content": event["content"], "name": event["observation"]})
        elif event.get("action") in ("message", "system"):
            text = args.get("content") or event.get("message")
            role = "system" if event["action"] == "system" else "user" if event.get("source") == "user" else "assistant"
            if isinstance(text, str) and text:
                out.append({"role": role, "content": text})
        elif event.get("source") == "agent" and isinstance(event.get("action"), str):
            given = {
                k: v for k, v in args.items() if k in ("command", "code", "path", "url", "content", "inputs", "name")
            }
            call = {"name": event["action"], "arguments": json.dumps(given, ensure_ascii=False)}
            thought = args.get("thought")
            out.append(
                {"role": "assistant", "content": thought if isinstance(thought, str) else "", "tool_calls": [call]}
            )
    return out
