"""Write `training_mix/`: a small EAGLE-3 training directory in the containers that trainers really use.

The texts stand in `seeds/` and were written for this project: programming tasks with a known bug and its issue, tool
schemas with dialogues, transcripts of repairs, reasoning problems, chats. Each becomes one or more conversations,
which are rendered with the Kimi K2.5 chat grammar, tokenized, masked and stored:

    A1_sweagent/       SpecForge per-sample .ckpt (torch ZIP), some padded with id 0, one .ckpt.gz
    B1_toolcalls/      pre-tokenized JSONL with native tool tokens and a tool_declare turn
    B2_codeproblems/   Hugging Face save_to_disk (Arrow), int32 ids
    B3_codeinstruct/   Parquet shards
    C1_reasoning/      JSONL.zst with think blocks
    D1_raw/            ShareGPT JSONL, not tokenized
    tokenizer/         Kimi's file format: 8,192 ranks trained on these texts; the special tokens have Kimi's names and
                       Kimi's ids, so there is a hole from 8192 to 163583, as in no real model

    python examples/make_training_mix.py --out DIR            the same bytes for the same library versions
    python examples/make_training_mix.py --train-tokenizer    also train the ranks again (needs `tokenizers`)

Needs tiktoken, numpy, pyarrow and zstandard. torch is not needed: a .ckpt is a ZIP of raw tensors beside a short
pickle, which is written here opcode by opcode. `rows()` is the golden answer: every conversation, in order, before
tokenizing.
"""

from __future__ import annotations

import argparse
import ast
import base64
import functools
import gzip
import io
import itertools
import json
import pickle
import shutil
import struct
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
SEEDS, TOKENIZER = HERE / "seeds", HERE / "training_mix" / "tokenizer"
N_RANKS = 8192
DEFAULT_SYSTEM = "You are a helpful assistant."  # what SpecForge adds where a row has no system turn
PATTERN = (  # Kimi's, in the notation of tiktoken
    r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = {  # id -> (token, `special` in tokenizer_config.json); tool and think tokens are not special there
    163584: ("[BOS]", True), 163585: ("[EOS]", True), 163586: ("<|im_end|>", True), 163587: ("<|im_user|>", True),
    163588: ("<|im_assistant|>", True), 163590: ("<|start_header_id|>", True), 163591: ("<|end_header_id|>", True),
    163593: ("[EOT]", True), 163594: ("<|im_system|>", True), 163595: ("<|tool_calls_section_begin|>", False),
    163596: ("<|tool_calls_section_end|>", False), 163597: ("<|tool_call_begin|>", False),
    163598: ("<|tool_call_argument_begin|>", False), 163599: ("<|tool_call_end|>", False),
    163601: ("<|im_middle|>", True), 163602: ("<|media_begin|>", True), 163603: ("<|media_content|>", True),
    163604: ("<|media_end|>", True), 163605: ("<|media_pad|>", True), 163606: ("<think>", False),
    163607: ("</think>", False), 163838: ("[UNK]", True), 163839: ("[PAD]", True),
}  # fmt: skip


# ------------------------------------------------------------------------------------------ seeds


@dataclass(frozen=True)
class Seed:
    """One block of a seed file: the words of its header line, and its sections in order."""

    header: list[str]
    sections: list[tuple[str, str]]

    def __getitem__(self, name: str) -> str:
        return next(text for key, text in self.sections if key == name)

    @property
    def name(self) -> str:
        return self.header[0]

    @property
    def prose(self) -> str:
        """Language of the prose: en unless the header says otherwise."""
        return self.header[2] if len(self.header) > 2 else "en"

    @property
    def buggy(self) -> str:
        """The code with its known mistake put in."""
        old, new = self["bug"][2:].split("\n+", 1)
        new = new.removeprefix(" ")
        if self["code"].count(old) != 1:
            raise ValueError(f"seed {self.name}: {self['code'].count(old)} places to put the bug, expected 1: {old!r}")
        return self["code"].replace(old, new)


@functools.cache
def read_seeds(name: str) -> list[Seed]:
    """Blocks start with `@@@ words`, sections with `%% name`."""
    seeds: list[Seed] = []
    for block in ("\n" + (SEEDS / name).read_text(encoding="utf-8")).split("\n@@@ ")[1:]:
        header, *sections = block.split("\n%% ")
        pairs = (s.partition("\n") for s in sections)
        # a section that is a lone "+" or "-" line keeps its blank: only newlines are trimmed
        seeds.append(Seed(header.split(), [(key.strip(), text.strip("\n")) for key, _, text in pairs]))
    return seeds


# ------------------------------------------------------------------------------------------ conversations


def turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def fence(seed: Seed, code: str | None = None) -> str:
    return f"```{seed.header[1]}\n{code if code is not None else seed['code']}\n```"


def ways(kind: str) -> dict[str, list[str]]:
    """Return language -> phrasings of a kind of request."""
    return {s.header[1]: [text for _, text in s.sections] for s in read_seeds("requests.txt") if s.name == kind}


def ask(kind: str, seed: Seed, i: int, **values: str) -> dict[str, Any]:
    """The i-th way to ask, in the language of the seed where there is one, as a user turn."""
    known = ways(kind)
    phrasings = known.get(seed.prose, known["en"])
    return turn("user", phrasings[i % len(phrasings)].format(**values))


FIXED = {"en": "Corrected:", "de": "Korrigiert:", "es": "Corregido:", "ja": "修正後：", "zh": "修改后："}


def written(seed: Seed, i: int) -> list[dict[str, Any]]:
    answer = [fence(seed), seed["how"]] if i % 3 else [seed["how"], fence(seed)]
    return [ask("write", seed, i, spec=seed["spec"]), turn("assistant", "\n\n".join(answer))]


def tested(seed: Seed, i: int) -> list[dict[str, Any]]:
    checks = seed["tests"].split("\n")
    if seed.header[1] == "python":
        checks = [f"assert {c}" for c in checks]
    answer = f"{fence(seed, chr(10).join(checks))}\n\n{seed['why']}"
    return [ask("tests", seed, i, code=fence(seed)), turn("assistant", answer)]


def explained(seed: Seed, i: int) -> list[dict[str, Any]]:
    return [ask("explain", seed, i, code=fence(seed)), turn("assistant", seed["how"])]


def debugged(seed: Seed, i: int) -> list[dict[str, Any]]:
    title, _, body = seed["issue"].partition("\n")
    text = {"issue": f"{title}\n{body}", "quoted": f"{title}\n> {body}", "code": fence(seed, seed.buggy)}
    answer = f"{seed['why']}\n\n{FIXED[seed.prose]}\n\n{fence(seed)}"
    return [ask("debug", seed, i, **text), turn("assistant", answer)]


def reviewed(seed: Seed, i: int) -> list[dict[str, Any]]:
    """A review of the code with its mistake, nobody having noticed it."""
    answer = f"One finding. {seed['why']}\n\n{fence(seed)}"
    return [ask("review", seed, i, name=seed.name, code=fence(seed, seed.buggy)), turn("assistant", answer)]


def completed(seed: Seed, i: int) -> list[dict[str, Any]]:
    lines = seed["code"].split("\n")
    cut = max(2, len(lines) * 2 // 5)
    given, rest = fence(seed, "\n".join(lines[:cut])), fence(seed, "\n".join(lines[cut:]))
    return [ask("complete", seed, i, name=seed.name, code=given), turn("assistant", rest)]


def predicted(seed: Seed, i: int) -> list[dict[str, Any]]:
    check = seed["tests"].split("\n")[-1]
    left, _, value = check.rpartition(" == ")
    try:
        ast.literal_eval(value)
    except (SyntaxError, ValueError):  # not a comparison with a literal
        left, value = check, "True"
    think = f"{seed['how']} Applied to {left}: follow the steps with these inputs, the result is {value}."
    return [
        ask("predict", seed, i, code=fence(seed), left=left),
        turn("assistant", f"It evaluates to `{value}`. {seed['how']}", reasoning=think),
    ]


RUN = {"type": "function", "function": {
    "name": "run_python", "description": "Run Python code in a sandbox; returns standard output and the exit status.",
    "parameters": {"type": "object", "required": ["code"], "properties": {
        "code": {"type": "string", "description": "A complete program."},
        "timeout": {"type": "integer", "description": "Seconds, 10 by default."}}}}}  # fmt: skip


def checked(seed: Seed, i: int) -> list[dict[str, Any]]:
    wrong = "fails" in dict(seed.sections) and i % 3 != 0
    check = seed["fails"] if wrong else seed["tests"].split("\n")[0]
    code = seed.buggy if wrong else seed["code"]
    call = json.dumps({"code": f"{code}\n\nprint({check})"}, ensure_ascii=False)
    ident = "functions.run_python:0"
    result = json.dumps({"stdout": "False\n" if wrong else "True\n", "status": 0})
    say = f"No, it is False. {seed['why']}" if wrong else f"Yes, the check prints True. {seed['how']}"
    return [
        ask("check", seed, i, check=check, code=fence(seed, code)),
        turn("assistant", "", tool_calls=[function_call(ident, "run_python", call)]),
        turn("tool", result, tool_call_id=ident),
        turn("assistant", say),
    ]


REPOS = [
    "acorn/core",
    "mossgate/api",
    "bluefin/tools",
    "tern/desk",
    "kiln/engine",
    "larch/web",
    "otter/cli",
    "sable/data",
]


def agent_turns(repo: str, issue: str, i: int, steps: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Turn (kind, text) steps say/run/out into a dialogue: observations are user turns, as in text-only scaffolds."""
    systems, tasks = ways("agent-system")["en"], ways("agent-task")["en"]
    opening = tasks[i % len(tasks)].format(repo=repo, issue=issue)
    messages, pending = [turn("system", systems[i % len(systems)]), turn("user", opening)], []
    for kind, text in steps:
        if kind == "out":
            messages += [turn("assistant", "\n\n".join(pending)), turn("user", f"OBSERVATION:\n{text}")]
            pending = []
        else:
            pending.append(f"```bash\n{text}\n```" if kind == "run" else text)
    return [*messages, turn("assistant", "\n\n".join(pending))]


def repaired(seed: Seed, i: int) -> list[dict[str, Any]]:
    """A repair of the seed's bug as an agent would do it."""
    suffix = {"python": "py", "typescript": "ts", "javascript": "js", "rust": "rs"}.get(seed.header[1], seed.header[1])
    name = seed.name.lower()
    path = f"src/{name}.{suffix}"
    old, new = (part.removeprefix(" ") for part in seed["bug"][1:].split("\n+", 1))
    edit = f"cat > fix.patch <<'EOF'\n-{new}\n+{old}\nEOF\npatch {path} fix.patch && make test"
    steps = [
        ("run", f"git ls-files | grep -i {name}"), ("out", f"{path}\ntests/{name}_test.{suffix}"),
        ("run", f"cat {path}"), ("out", seed.buggy),
        ("say", seed["why"]), ("run", edit), ("out", f"patching file {path}\n{3 + i % 17} passed in {i % 9}.{i % 7}s"),
        ("say", seed["why"].split(". ")[0].rstrip(".") + f". The change is one place in {path}; the tests pass."),
    ]  # fmt: skip
    return agent_turns(REPOS[i % len(REPOS)], seed["issue"], i, steps)


def parse_tool(line: str) -> dict[str, Any]:
    """`name(city: string!, unit: a|b) | what it does` as an OpenAI tool; `!` marks a required argument."""
    signature, _, description = line.partition(" | ")
    name, _, arguments = signature.rstrip(")").partition("(")
    properties, required = {}, []
    for argument in filter(None, arguments.split(", ")):
        key, kind = argument.split(": ")
        if kind.endswith("!"):
            required.append(key)
        kind = kind.rstrip("!")
        properties[key] = {"type": "string", "enum": kind.split("|")} if "|" in kind else {"type": kind}
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def function_call(ident: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_dialogues(seed: Seed) -> Iterator[dict[str, Any]]:
    """Each `ask` of a tool set begins a conversation; `then` goes on with it."""
    tools = [parse_tool(line) for line in seed["tools"].split("\n")]
    system = [turn("system", text) for key, text in seed.sections if key == "system"]
    sections = [s for s in seed.sections if s[0] not in ("tools", "system")]
    starts = [i for i, (key, _) in enumerate(sections) if key == "ask"]
    for a, b in itertools.pairwise([*starts, len(sections)]):
        messages, count, calls = list(system), itertools.count(), []
        for key, text in sections[a:b]:
            if key in ("ask", "then"):
                messages.append(turn("user", text))
            elif key == "call":
                pairs = [line.partition(" ") for line in text.split("\n")]
                calls = [function_call(f"functions.{name}:{next(count)}", name, args) for name, _, args in pairs]
                messages.append(turn("assistant", "", tool_calls=calls))
            elif key == "result":
                lines = text.split("\n")
                messages += [turn("tool", t, tool_call_id=c["id"]) for c, t in zip(calls, lines, strict=True)]
            else:
                messages.append(turn("assistant", text))
        yield {"messages": messages, "tools": tools}


def conversations() -> dict[str, list[dict[str, Any]]]:
    """Return source -> conversations ({"messages", "tools"}) in the order in which they are stored."""
    code = read_seeds("code_python.txt") + read_seeds("code_other.txt")
    english = [s for s in code if s.prose == "en"]
    python = [s for s in code if s.header[1] == "python"]
    # a check must be an expression that the reader of the row can evaluate: no files, no clock
    runnable = [s for s in python if s.prose == "en" and ".txt" not in s["tests"] and ".csv" not in s["tests"]]
    made: dict[str, list[list[dict[str, Any]]]] = {
        "A1_sweagent": [
            agent_turns(s.name, s["issue"], i, s.sections[1:])
            for i, s in enumerate(read_seeds("agent.txt"))
        ] + [repaired(s, i) for i, s in enumerate(english) if i % 3 != 2],
        "B2_codeproblems": [f(s, i) for i, s in enumerate(code) for f in (written, tested)]
        + [completed(s, i) for i, s in enumerate(code)],
        "B3_codeinstruct": [f(s, i) for i, s in enumerate(code) for f in (debugged, explained)]
        + [reviewed(s, i) for i, s in enumerate(english)],
        "C1_reasoning": [
            [turn("user", s["ask"]), turn("assistant", s["say"], reasoning=s["think"])]
            for s in read_seeds("reasoning.txt")
        ] + [predicted(s, i) for i, s in enumerate(runnable)],
        "D1_raw": [
            [turn({"user": "user", "say": "assistant"}[key], text) for key, text in s.sections]
            for s in read_seeds("chat.txt")
        ],
    }  # fmt: skip
    result = {name: [{"messages": m, "tools": None} for m in rows] for name, rows in made.items()}
    dialogues = [row for seed in read_seeds("tools.txt") for row in tool_dialogues(seed)]
    checks = [{"messages": checked(s, i), "tools": [RUN]} for i, s in enumerate(runnable)]
    result["B1_toolcalls"] = dialogues + checks
    for name, rows in result.items():  # mix the kinds within a source: neighbours in a file are seldom alike
        result[name] = [rows[i] for i in sorted(range(len(rows)), key=lambda i: (i * 0.6180339887498949) % 1)]
    for i, row in enumerate(result["A1_sweagent"] + result["B1_toolcalls"]):
        if row["messages"][0]["role"] != "system" and i % 2:
            row["messages"].insert(0, turn("system", DEFAULT_SYSTEM))
    return dict(sorted(result.items()))


# ------------------------------------------------------------------------------------------ Kimi's chat grammar


def render(row: dict[str, Any], *, think: bool) -> list[tuple[str, bool]]:
    """Return the text in pieces, each with whether it is supervised: assistant turns behind their header, end included.

    `think` writes a think pair into each assistant turn, as K2.5 does: empty but for the last turn. Reasoning is kept
    only there.
    """
    pieces = []
    if row["tools"]:
        declared = json.dumps(row["tools"], ensure_ascii=False)
        pieces.append((f"<|im_system|>tool_declare<|im_middle|>{declared}<|im_end|>", False))
    for m in row["messages"]:
        role, text = m["role"], m["content"]
        if role == "tool":
            name = m["tool_call_id"].removeprefix("functions.").partition(":")[0]
            pieces.append(
                (f"<|im_system|>{name}<|im_middle|>## Return of {m['tool_call_id']}\n{text}<|im_end|>", False)
            )
        elif role == "assistant":
            calls = "".join(
                f"<|tool_call_begin|>{c['id']}<|tool_call_argument_begin|>{c['function']['arguments']}<|tool_call_end|>"
                for c in m.get("tool_calls", ())
            )
            if calls:
                calls = f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"
            reasoning = f"<think>{m.get('reasoning', '')}</think>" if think else ""
            pieces.append(("<|im_assistant|>assistant<|im_middle|>", False))
            pieces.append((f"{reasoning}{text}{calls}<|im_end|>", True))
        else:
            pieces.append((f"<|im_{role}|>{role}<|im_middle|>{text}<|im_end|>", False))
    return pieces


def encode(pieces: list[tuple[str, bool]], tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and loss mask, both int64. Pieces meet at special tokens, so they may be encoded one by one."""
    parts = [np.asarray(tokenizer.encode(t, allowed_special="all"), np.int64) for t, _ in pieces]
    mask = [np.full(len(p), supervised, np.int64) for p, (_, supervised) in zip(parts, pieces, strict=True)]
    return np.concatenate(parts), np.concatenate(mask)


def load_tokenizer(directory: Path) -> Any:
    """Return a tiktoken encoding built from the files of a model directory."""
    import tiktoken

    words = (directory / "tiktoken.model").read_bytes().split()
    ranks = {base64.b64decode(w): int(r) for w, r in zip(words[::2], words[1::2], strict=True)}
    specials = {token: i for i, (token, _) in SPECIALS.items()}
    return tiktoken.Encoding("training_mix", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=specials)


def train_tokenizer(texts: Iterable[str], directory: Path) -> None:
    """Train byte-level BPE ranks and write them as Kimi does: one line of base64 bytes and rank each."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=N_RANKS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    # the byte-level alphabet: printable Latin-1 bytes stand for themselves, the others follow from U+0100
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    to_byte = {chr(b): b for b in plain}
    to_byte |= {chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in set(plain))}
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    lines = [base64.b64encode(bytes(to_byte[ch] for ch in token)) + b" %d\n" % rank for token, rank in vocabulary]
    (directory / "tiktoken.model").write_bytes(b"".join(lines))


def write_tokenizer_config(directory: Path) -> None:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    added = {str(i): {"content": token, **flags, "special": special} for i, (token, special) in SPECIALS.items()}
    config = {"added_tokens_decoder": added, "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]",
              "pad_token": "[PAD]", "model_max_length": 1048576, "tokenizer_class": "TikTokenTokenizer"}  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


# ------------------------------------------------------------------------------------------ containers

Encoded = tuple[np.ndarray, np.ndarray]
HIDDEN = 1  # Kimi K2.5 has 7168; one number per token and layer keeps the files small and the keys real


def torch_zip(tensors: dict[str, np.ndarray | tuple[bytes, tuple[int, ...]]], stem: str) -> bytes:
    """Return what `torch.save` of a flat dict of tensors would write; int64 arrays, or (bfloat16 bytes, shape)."""
    ops, storages = [pickle.PROTO + b"\x02", pickle.EMPTY_DICT, pickle.MARK], []

    def text(value: str) -> bytes:
        return pickle.BINUNICODE + struct.pack("<I", len(value.encode())) + value.encode()

    def integers(values: tuple[int, ...]) -> bytes:
        return pickle.MARK + b"".join(pickle.BININT + struct.pack("<i", v) for v in values) + pickle.TUPLE

    for key, value in tensors.items():
        raw, shape = value if isinstance(value, tuple) else (value.astype("<i8").tobytes(), value.shape)
        kind = "BFloat16Storage" if isinstance(value, tuple) else "LongStorage"
        strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
        count = int(np.prod(shape))
        persistent = text("storage") + f"ctorch\n{kind}\n".encode() + text(str(len(storages))) + text("cpu")
        ops += [
            text(key), b"ctorch._utils\n_rebuild_tensor_v2\n", pickle.MARK,
            pickle.MARK + persistent + pickle.BININT + struct.pack("<i", count) + pickle.TUPLE + pickle.BINPERSID,
            pickle.BININT + struct.pack("<i", 0), integers(shape), integers(strides), pickle.NEWFALSE,
            b"ccollections\nOrderedDict\n", pickle.EMPTY_TUPLE, pickle.REDUCE, pickle.TUPLE, pickle.REDUCE,
        ]  # fmt: skip
        storages.append(raw)
    ops += [pickle.SETITEMS, pickle.STOP]

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        entries = {
            "data.pkl": b"".join(ops),
            ".format_version": b"1",
            ".storage_alignment": b"64",
            "byteorder": b"little",
        }
        entries |= {f"data/{i}": raw for i, raw in enumerate(storages)} | {"version": b"3\n"}
        for name, data in entries.items():
            info = zipfile.ZipInfo(f"{stem}/{name}", date_time=(1980, 1, 1, 0, 0, 0))
            pad = -(out.tell() + 30 + len(info.filename) + 4) % 64  # torch aligns each entry's data at 64 bytes
            info.extra = b"FB" + struct.pack("<H", pad) + b"Z" * pad
            z.writestr(info, data)
    return out.getvalue()


def write_ckpt(out: Path, rows: list[Encoded]) -> Iterator[tuple[str, int]]:
    """SpecForge's offline layout. Every third group of four was captured together and so padded with id 0."""
    for first in range(0, len(rows), 4):
        group = rows[first : first + 4]
        width = max(len(ids) for ids, _ in group) if first // 4 % 3 == 1 else 0
        for i, (ids, mask) in enumerate(group, first):
            pad = max(0, width - len(ids))
            n = len(ids) + pad
            noise = np.random.default_rng(i).standard_normal((4, n)).astype("<f4").view("<u4") >> 16
            hidden = noise.astype("<u2")  # the upper half of a float32 is a bfloat16
            tensors = {
                "input_ids": np.pad(ids, (0, pad)),
                "loss_mask": np.pad(mask, (0, pad)),
                "aux_hidden_state": (hidden[:3].T.tobytes(), (1, n, 3 * HIDDEN)),
                "hidden_state": (hidden[3:].T.tobytes(), (1, n, HIDDEN)),
            }
            index = i + i // 20  # samples with NaN were never written, so numbers have gaps
            name = f"rows_0-2000/data_{index}.ckpt"
            data = torch_zip(tensors, f"data_{index}")
            if i == 9:
                name += ".gz"
                data = gzip.compress(data, 6, mtime=0)
            (out / name).parent.mkdir(exist_ok=True)
            (out / name).write_bytes(data)
            yield name, 0


def jsonl(rows: list[Encoded]) -> bytes:
    records = ({"input_ids": ids.tolist(), "loss_mask": mask.tolist()} for ids, mask in rows)
    return b"".join(json.dumps(r, separators=(",", ":")).encode() + b"\n" for r in records)


def write_jsonl(out: Path, rows: list[Encoded]) -> Iterator[tuple[str, int]]:
    (out / "train.jsonl").write_bytes(jsonl(rows))
    yield from (("train.jsonl", n) for n in range(len(rows)))


def write_zst(out: Path, rows: list[Encoded]) -> Iterator[tuple[str, int]]:
    import zstandard

    (out / "train.jsonl.zst").write_bytes(zstandard.ZstdCompressor(level=10).compress(jsonl(rows)))
    yield from (("train.jsonl.zst", n) for n in range(len(rows)))


def table(rows: list[Encoded], ids_type: str, mask_type: str) -> Any:
    import pyarrow as pa

    types = {"input_ids": pa.list_(getattr(pa, ids_type)()), "loss_mask": pa.list_(getattr(pa, mask_type)())}
    columns = [pa.array([row[k].tolist() for row in rows], t) for k, t in enumerate(types.values())]
    return pa.Table.from_arrays(columns, schema=pa.schema(list(types.items())))


def halves(rows: list[Encoded]) -> list[list[Encoded]]:
    middle = len(rows) // 2
    return [rows[:middle], rows[middle:]]


def write_arrow(out: Path, rows: list[Encoded]) -> Iterator[tuple[str, int]]:
    """What `Dataset.save_to_disk` leaves behind: two Arrow streams, the state and the description."""
    import pyarrow as pa

    features = {
        k: {"feature": {"dtype": t, "_type": "Value"}, "_type": "Sequence"}
        for k, t in (("input_ids", "int32"), ("loss_mask", "int8"))
    }
    names = []
    for k, part in enumerate(halves(rows)):
        names.append(f"data-{k:05d}-of-00002.arrow")
        data = table(part, "int32", "int8")
        data = data.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        with pa.OSFile(str(out / names[-1]), "wb") as f, pa.ipc.new_stream(f, data.schema) as stream:
            stream.write_table(data, max_chunksize=100)
        yield from ((names[-1], n) for n in range(len(part)))
    state = {"_data_files": [{"filename": n} for n in names], "_fingerprint": "7d1c0f5be2a94a36",
             "_format_columns": None, "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False,
             "_split": None}  # fmt: skip
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    for name, value in (("state.json", state), ("dataset_info.json", info)):
        (out / name).write_text(json.dumps(value, indent=2, sort_keys=True), encoding="utf-8")


def write_parquet(out: Path, rows: list[Encoded]) -> Iterator[tuple[str, int]]:
    import pyarrow.parquet as pq

    (out / "data").mkdir()
    for k, part in enumerate(halves(rows)):
        name = f"data/train-{k:05d}-of-00002.parquet"
        pq.write_table(table(part, "int64", "int64"), out / name, row_group_size=50, compression="zstd")
        yield from ((name, n) for n in range(len(part)))


def write_sharegpt(out: Path, rows: list[dict[str, Any]]) -> Iterator[tuple[str, int]]:
    roles = {"user": "human", "assistant": "gpt"}
    with open(out / "chats.jsonl", "w", encoding="utf-8", newline="\n") as f:
        for n, row in enumerate(rows):
            turns = [{"from": roles[m["role"]], "value": m["content"]} for m in row["messages"]]
            f.write(json.dumps({"id": f"chat-{n}", "conversations": turns}, ensure_ascii=False) + "\n")
            yield "chats.jsonl", n


WRITERS = {
    "A1_sweagent": write_ckpt, "B1_toolcalls": write_jsonl, "B2_codeproblems": write_arrow,
    "B3_codeinstruct": write_parquet, "C1_reasoning": write_zst,
}  # fmt: skip


def rows(out: Path | None = None, tokenizer_directory: Path = TOKENIZER) -> Iterator[dict[str, Any]]:
    """Yield the golden rows and write them below `out` if given.

    A row has source, shard, row, n_tokens, n_supervised (both None where the row is not tokenized), messages and tools.
    Without `out` the containers are written to a directory that is thrown away.
    """
    import tempfile

    tokenizer = load_tokenizer(tokenizer_directory)
    with tempfile.TemporaryDirectory() as scratch:
        for source, convs in conversations().items():
            directory = (out or Path(scratch)) / source
            directory.mkdir(parents=True)
            if source == "D1_raw":
                places: Iterable[tuple[str, int]] = write_sharegpt(directory, convs)
                counts: Iterable[tuple[int | None, int | None]] = itertools.repeat((None, None), len(convs))
            else:
                # K2 wrote no think pair, K2.5 writes one: both occur in training sets of one project
                encoded = [encode(render(c, think=source != "A1_sweagent"), tokenizer) for c in convs]
                places = WRITERS[source](directory, encoded)
                counts = [(len(ids), int(mask.sum())) for ids, mask in encoded]
            for (shard, n), (n_tokens, n_supervised), conv in zip(places, counts, convs, strict=True):
                yield {"source": source, "shard": f"{source}/{shard}", "row": n, "n_tokens": n_tokens,
                       "n_supervised": n_supervised, **conv}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "training_mix", help="written anew; its tokenizer is kept")
    parser.add_argument("--train-tokenizer", action="store_true", help="train the ranks again from the texts")
    options = parser.parse_args()
    tokenizer = options.out / "tokenizer"
    tokenizer.mkdir(parents=True, exist_ok=True)
    if options.train_tokenizer:
        texts = ("".join(t for t, _ in render(c, think=True)) for cs in conversations().values() for c in cs)
        train_tokenizer(texts, tokenizer)
    elif tokenizer.resolve() != TOKENIZER:
        shutil.copy(TOKENIZER / "tiktoken.model", tokenizer)
    write_tokenizer_config(tokenizer)
    for source in conversations():
        shutil.rmtree(options.out / source, ignore_errors=True)
    totals: dict[str, list[int]] = {}
    for row in rows(options.out, tokenizer):
        total = totals.setdefault(row["source"], [0, 0])
        total[0] += 1
        total[1] += row["n_tokens"] or 0
    for source, (n, tokens) in totals.items():
        print(f"{source:18}{n:6} rows{tokens:9} tokens")


if __name__ == "__main__":
    main()
