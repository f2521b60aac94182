r"""promptfoo: a configuration whose only prompt is {{messages}}, and one test per prompt.

    {"metadata": {"domain": "math", "id": "9f2c..."}, "vars": {"max_tokens": 412,
     "messages": "[{\"content\": \"Fill \\u007b\\u007bname\\u007d\\u007d\", \"role\": \"user\"}]"}}

promptfoo renders values as templates, reads those that begin with file://, cuts a last newline, stops at a stray #},
and sends a prompt that parses as JSON as messages. A JSON array of messages with every brace inside a string escaped
is safe from all of these, and carries system turns and histories. A test's own options do not reach the provider; a
prompt function can set them, so that each test asks for its own length and tools. Tried with 0.119.0, the last that
runs on Node 20.
"""

from __future__ import annotations

import json
import re
from typing import Any

from promptkit.exporters.carry import carried
from promptkit.exporters.job import Job, Piece, lines

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


FUNCTION = """\
// What each test of a promptkit pack sends. Written by `promptkit export`.
module.exports = ({ vars }) => ({
  prompt: "{{messages}}",
  config: { max_tokens: vars.max_tokens, passthrough: vars.tools ? { tools: JSON.parse(vars.tools) } : {} },
});
"""


def promptfoo(job: Job) -> Piece:
    """Return NAME.json, the configuration, NAME.jsonl, its tests, and NAME.cjs, the prompt function."""
    job, losses = carried(job, system=True, history=True, tools=True)
    if not job.prompts:
        return Piece({}, "", losses)
    config = {
        "description": job.name,
        "prompts": [f"file://{job.name}.cjs"],
        "tests": f"file://{job.name}.jsonl",
        "evaluateOptions": {"cache": False, "maxConcurrency": job.concurrency},
    }
    rows: list[dict[str, Any]] = []
    for p in job.prompts:
        variables: dict[str, Any] = {"max_tokens": job.length(p), "messages": template_safe(p.messages)}
        if p.tools:
            variables["tools"] = template_safe(p.tools)
        rows.append({"metadata": {"domain": p.domain, "id": p.id, "source": p.source}, "vars": variables})
    environment = (
        "PROMPTFOO_DISABLE_TELEMETRY=1 PROMPTFOO_DISABLE_UPDATE=1 "
        f'OPENAI_API_KEY="${{OPENAI_API_KEY:-none}}" OPENAI_BASE_URL={job.shell("$BASE_URL/v1")}'
    )
    run = job.shell(
        "promptfoo", "eval", "-c", job.file(f"{job.name}.json"), "--providers", "openai:chat:$MODEL", "--no-cache",
        "--no-share", "--no-table", "--max-concurrency", str(job.concurrency), "-o", job.directory + "-results.json",
    )  # fmt: skip
    return Piece(
        files={
            f"{job.name}.json": json.dumps(config, indent=1).encode() + b"\n",
            f"{job.name}.jsonl": lines(rows),
            f"{job.name}.cjs": FUNCTION.encode(),
        },
        command=f"{environment} {run}",
        losses=losses,
        ids=[(p.id, p.id) for p in job.prompts],
        notes=["Results name each test's metadata; --filter-metadata domain=NAME runs one domain."],
    )


def template_safe(value: Any) -> str:
    """Return JSON in which no string holds a brace, so that no template engine finds anything to do in it."""
    text = json.dumps(value, ensure_ascii=True)
    return _STRING.sub(lambda m: m[0].replace("{", "\\u007b").replace("}", "\\u007d"), text)
