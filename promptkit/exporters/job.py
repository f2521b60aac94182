"""What every exporter is given and returns: `Job -> Piece`, both plain data.

def mine(job: Job) -> Piece:
    rows = [{"prompt": p.messages[-1]["content"], "tokens": job.length(p)} for p in job.prompts]
    return Piece({f"{job.name}.jsonl": lines(rows)}, job.shell("bench", "--file", job.file(f"{job.name}.jsonl")),
                 losses=unknown_lengths(job), ids=[(p.id, str(i)) for i, p in enumerate(job.prompts)])
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from promptkit.errors import UsageError

if TYPE_CHECKING:
    from promptkit.conversation import Message
    from promptkit.pack import PackPrompt
    from promptkit.tokenizers import Tokenizer

OUTPUT_TOKENS = 512  # where a row does not know how long its answer is; every such row is listed as a loss


@dataclass(frozen=True, slots=True)
class Loss:
    """What the target drops, repeats or changes: of how many prompts, and what to do about it."""

    what: str
    count: int
    note: str


@dataclass(frozen=True, slots=True)
class Job:
    """What an exporter is given. `name` is the stem of its files; `directory` is where they will lie, for commands."""

    prompts: Sequence[PackPrompt]
    name: str
    directory: str
    base_url: str | None = None
    model: str | None = None
    template: str | None = None  # name of a template that promptkit can write, for targets that take templated text
    tokenizer: Tokenizer | None = None  # for targets that take ids
    tokenizer_path: str | None = None  # what a client is told to load, where it insists on one
    output_tokens: int = OUTPUT_TOKENS
    replay: bool = False  # several user turns are sent one by one, the model's own answers between them
    concurrency: int = 1
    pack: Sequence[PackPrompt] = ()  # all prompts, where `prompts` are one domain's: what is decided once for the pack

    def of(self, prompts: Sequence[PackPrompt]) -> Job:
        """Return this job for some of its prompts."""
        return replace(self, prompts=prompts)

    def length(self, prompt: PackPrompt) -> int:
        """Tokens to generate for a prompt: at least one."""
        known = prompt.expected_output_tokens
        return self.output_tokens if known is None else max(1, known)

    def requests(self, prompt: PackPrompt) -> list[list[Message]]:
        """Return what each request of a prompt adds: all messages at once, in a replay pack one user turn each."""
        if not self.replay or any(m["role"] in ("assistant", "tool") for m in prompt.messages):
            return [prompt.messages]
        turns: list[list[Message]] = [[]]
        for m in prompt.messages:
            turns[-1].append(m)
            if m["role"] == "user":
                turns.append([])
        return [t for t in turns if t]

    def text(self, prompt: PackPrompt) -> str:
        """Return the prompt as the chat template renders it; UsageError where `unwritable` says so."""
        return prompt.text(template=self.template)

    def unwritable(self) -> str | None:
        """Return why no templated text can be made, None where it can."""
        from promptkit.grammars import render

        if self.template is None:
            return "the pack names no chat template"
        try:
            render([{"role": "user", "content": "?"}], None, self.template)
        except UsageError as error:
            return error.message
        return None

    def shell(self, *words: str) -> str:
        """Return one line to paste. A word that holds $BASE_URL or $MODEL is left to the shell, or filled in."""
        return " ".join(self._word(w) for w in words)

    def file(self, name: str) -> str:
        """Return the path of one of this job's files as the command names it."""
        return os.path.join(self.directory, name)

    def _word(self, word: str) -> str:
        given = {"$BASE_URL": self.base_url, "$MODEL": self.model}
        for name, value in given.items():
            if value is not None:
                word = word.replace(name, value)
        if not any(name in word for name in given):
            return shlex.quote(word)
        parts = re.split(r"(\$BASE_URL|\$MODEL)", word)
        return '"' + "".join(p if p in given else re.sub(r'([\\"$`])', r"\\\1", p) for p in parts) + '"'


@dataclass(frozen=True, slots=True)
class Piece:
    """What an exporter returns: `files` by name below the target's directory, one `command`, `losses`, `ids`.

    `ids` holds (prompt id, what the target will report for it), in the order of the file; a prompt that the target
    cannot carry is left out of files and ids and counted in `losses`. `notes` are said beside the command.
    """

    files: dict[str, bytes]
    command: str
    losses: list[Loss] = field(default_factory=list)
    ids: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


Exporter = Callable[[Job], Piece]


def lines(rows: Sequence[dict[str, Any]]) -> bytes:
    r"""Return JSON lines with every character outside ASCII escaped: no U+2028 can cut a line in a harness's reader."""
    return b"".join(json.dumps(r, ensure_ascii=True).encode() + b"\n" for r in rows)


def unknown_lengths(job: Job) -> list[Loss]:
    """Return the loss that says how many prompts got the default output length, or nothing."""
    n = sum(p.expected_output_tokens is None for p in job.prompts)
    note = f"{job.output_tokens} tokens are asked for instead; set another number with --output-tokens"
    return [Loss("no expected output length", n, note)] if n else []


def array(rows: Sequence[dict[str, Any]]) -> bytes:
    """Return one JSON array with a row on each line, ASCII only, for targets that read a whole document."""
    return b"[" + b",".join(b"\n" + json.dumps(r, ensure_ascii=True).encode() for r in rows) + b"\n]\n"


def body(job: Job, prompt: PackPrompt) -> dict[str, Any]:
    """Return the chat request of a prompt, without a model: messages as they are, max_tokens, tools if any."""
    tools = {"tools": prompt.tools} if prompt.tools else {}
    return {"messages": prompt.messages, "max_tokens": job.length(prompt), **tools}


def sent_reasoning(job: Job) -> list[Loss]:
    """Return the loss that says how many prompts hold reasoning of earlier turns, or nothing."""
    n = sum(any(m.get("reasoning") for m in p.messages) for p in job.prompts)
    note = "sent as the key `reasoning` of its message, which vLLM reads; servers that do not know it leave it out"
    return [Loss("reasoning of earlier turns", n, note)] if n else []
