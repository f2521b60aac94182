"""A results file of any harness -> one row of numbers per request, with what it can be joined to prompts by.

    AIPerf profile_export.jsonl   {"metadata": {"conversation_id": ID}, "metrics": {"request_latency": {"value": 70}}}
    GuideLLM JSON                 {"benchmarks": [{"requests": {"successful": [{"request_args": "{...}", ...}]}}]}
    vLLM --save-detailed          {"input_lens": [6], "output_lens": [51], "itls": [[0.01]], "errors": [""]}
    SGLang --output-details       the same lists, one run a line; the last run is taken
    lm-eval samples_*.jsonl       {"doc_id": 0, "doc": {"id": ID, ...}, "acc": 1.0}
    specdec_bench                 [{"Request_AL": {"0": {"0": 2.5}}}]; {"question_id": 81, "acceptance_lengths": [3, 1]}
    CSV, JSONL, JSON, Parquet     a row per request: an id and numbers

Which key means what is data: the tuples below, first hit wins. Every number of a row is a metric under its own name,
nested ones under the last part that is unique. `tokens` and `steps` are added where the row tells them: tokens that
came out of the verification steps, bonus token included, and how many steps there were. The formats of AIPerf 0.13,
GuideLLM 0.8, vLLM 0.33, SGLang 0.5 and specdec_bench are known from runs or from their sources.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptkit.candidates import FORMATS, _bytes, _sniff
from promptkit.conversation import prompt_id
from promptkit.dialects import ID_KEYS, BadRow, Row, json_in_string, to_prompt
from promptkit.errors import InputError, UsageError

TOKENS = (
    "tokens", "n_tokens", "output_tokens", "num_output_tokens", "completion_tokens", "generated_tokens", "new_tokens",
    "output_token_count", "output_len", "output_sequence_length",
)  # fmt: skip
STEPS = (
    "steps", "n_steps", "num_steps", "verify_steps", "verification_steps", "decode_steps", "spec_decode_steps",
    "num_spec_steps", "spec_verify_ct", "num_drafts",
)  # fmt: skip
ACCEPTED = (
    "accepted_tokens", "num_accepted_tokens", "accepted_draft_tokens", "num_accepted_draft_tokens",
    "spec_decode_accepted_draft_tokens",
)  # fmt: skip
LENGTHS = (
    "acceptance_length", "accept_length", "mean_acceptance_length", "spec_decode_acceptance_length",
    "specdec_acceptance_length", "spec_accept_length", "accepted_length", "al",
)  # fmt: skip
WITH_BONUS = frozenset({"spec_decode_acceptance_length", "specdec_acceptance_length"})  # names that say what they count
NO_ROW = "not a mapping of names to numbers"
NESTED = 6  # levels at which numbers are looked for


@dataclass(frozen=True)
class Result:
    """One request: where it stands in the file, its metrics, and what may name its prompt."""

    place: str
    index: int
    metrics: dict[str, float]
    ids: tuple[str, ...] = ()  # as the file says, best first
    content: str | None = None  # id of the messages that were sent, where the file holds them
    error: str | None = None


@dataclass(frozen=True)
class Results:
    """The rows of a file and the harness that wrote it, as far as can be told."""

    harness: str
    rows: list[Result]
    notes: list[str] = field(default_factory=list)

    def metrics(self) -> list[str]:
        """Return the names of all metrics, those of most rows first."""
        counts: dict[str, int] = {}
        for row in self.rows:
            for name in row.metrics:
                counts[name] = counts.get(name, 0) + 1
        return sorted(counts, key=lambda name: (-counts[name], name))


def read_results(path: str | Path | Sequence[Mapping[str, Any]]) -> Results:
    """Return the rows of a results file, or of rows that are given as mappings.

    Raises UsageError (no such file), InputError (not readable, or no row holds a number).
    """
    if isinstance(path, str | Path):
        where = Path(path)
        if where.is_dir():
            raise UsageError(
                f"results {where}: is a directory",
                hint="name a file of it; samples_*.jsonl of one run can be joined by cat",
            )
        name, raw = _bytes(where)
        if not raw.strip():
            raise InputError(f"{name}: empty file, no results", hint="check that the run ended and wrote its results")
        values = _values(name, raw, where)
    else:
        name, values = "results", [(f"row {i}", dict(row)) for i, row in enumerate(path)]
    if not values:
        raise InputError(f"{name}: no results in it", hint="check that the run ended")
    found = next((r for r in (read(values) for read in READERS) if r is not None), None)
    assert found is not None  # the last reader takes any rows
    if not found.rows:
        raise InputError(f"{name}: no results in it ({found.harness})", hint="check that the run ended")
    if not any(r.metrics for r in found.rows if r.error is None):
        failed = sum(r.error is not None for r in found.rows)
        if all(r.error == NO_ROW for r in found.rows):
            why = "no row is a mapping of names to numbers"
        else:
            why = f"all {failed} requests failed" if failed == len(found.rows) else "no row holds a number"
        raise InputError(f"{name}: {why} ({found.harness})", hint="expected an id and numbers in each row")
    return found


Values = list[tuple[str, Any]]  # place and value of each row; of one document, one


def _values(name: str, raw: bytes, where: Path) -> Values:
    kind = _sniff(Path(name).name, raw)
    if kind in ("csv", "tsv") or (kind == "txt" and raw.split(b"\n", 1)[0].count(b",")):
        return _table(name, raw)
    if kind in ("parquet", "arrow"):
        return [(row.place, row.value) for row in FORMATS[kind](raw, name, where)]
    try:
        text = raw.decode("utf-8-sig")
        lines = [(i, x) for i, x in enumerate(text.split("\n"), 1) if x.strip()]
        if len(lines) > 1 and _whole(lines[0][1]):
            return [(f"line {i}", _line(name, i, x)) for i, x in lines]
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{name}: not readable as JSON, JSONL, CSV or Parquet ({str(error)[:80]})",
            hint="give results per request: profile_export.jsonl, --save-detailed, samples_*.jsonl, a CSV with an id",
        ) from None
    if isinstance(document, list):
        return [(f"row {i}", row) for i, row in enumerate(document)]
    return [("the document", document)]


def _line(name: str, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        told = getattr(error, "msg", None) or "not readable"
        raise InputError(
            f"{name}: line {number} is no JSON ({told})", hint="check that the run ended and wrote its results whole"
        ) from None


def _whole(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _table(name: str, raw: bytes) -> Values:
    import csv
    import io

    text = raw.decode("utf-8-sig", errors="replace")
    first = text.split("\n", 1)[0]
    mark = max(",\t;", key=first.count)
    try:
        table = csv.DictReader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
        names = [c.strip() for c in table.fieldnames or () if c.strip()]
        if twice := next((c for c in names if names.count(c) > 1), None):
            raise InputError(f"{name}: column {twice[:60]!r} comes twice", hint="keep one of them")
        rows = list(table)
    except csv.Error as error:
        raise InputError(f"{name}: not readable as CSV: {error}", hint="quote text that holds the separator") from None
    return [
        (f"line {i}", {k.strip(): _cell(v) for k, v in row.items() if isinstance(k, str) and v not in (None, "")})
        for i, row in enumerate(rows, 2)
    ]


def _cell(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


# ------------------------------------------------------------------------------------------------- one per harness


def _aiperf(values: Values) -> Results | None:
    if not (isinstance(values[0][1], Mapping) and {"metadata", "metrics"} <= values[0][1].keys()):
        return None
    rows = []
    for i, (place, given) in enumerate(values):
        value = _mapping(given, None)
        about, metrics = _mapping(value, "metadata"), _mapping(value, "metrics")
        named = {k: v.get("value") if isinstance(v, Mapping) else v for k, v in metrics.items()}
        failed = value.get("error") or ("cancelled" if about.get("was_cancelled") else None)
        ids = _ids(about, ("conversation_id", "session_id"))
        rows.append(Result(place, i, _numbers(named), ids, error=_said(failed)))
    return Results("AIPerf", rows)


def _guidellm(values: Values) -> Results | None:
    runs = _mapping(values[0][1], None).get("benchmarks")
    if not isinstance(runs, list) or not runs or "requests" not in _mapping(runs[-1], None):
        return None
    rows: list[Result] = []
    for kind, requests in _mapping(runs[-1], "requests").items():
        for given in requests if isinstance(requests, list) else ():
            value = _mapping(given, None)
            sent = json_in_string(value.get("request_args"))
            content = _content(_mapping(sent, "body") or _mapping(sent, None))
            plain = {k: v for k, v in value.items() if k not in ("request_args", "output")}
            i = len(rows)
            failed = None if kind == "successful" else kind
            rows.append(Result(f"{kind} request {i}", i, _numbers(plain), content=content, error=failed))
    notes = [f"{len(runs)} benchmarks in the file: the last one is taken"] if len(runs) > 1 else []
    return Results("GuideLLM", rows, notes)


def _lists(values: Values) -> Results | None:
    """VLLM and SGLang: lists with one entry per request, in the order they were sent."""
    runs = [v for _, v in values if isinstance(v, Mapping) and isinstance(v.get("output_lens"), list)]
    if not runs and any("request_throughput" in _mapping(v, None) for _, v in values):
        raise InputError(
            "results of a whole run, without its requests",
            hint="run it with --save-result --save-detailed (vLLM), or with --output-details (SGLang)",
        )
    if not runs or len(runs) != len(values):
        return None
    run = runs[-1]
    n = len(run["output_lens"])
    columns = {k: v for k, v in run.items() if isinstance(v, list) and len(v) == n and k not in ("generated_texts",)}
    rows = []
    for i in range(n):
        row = {k: v[i] for k, v in columns.items()}
        failed = _said(row.pop("errors", None))
        gaps = row.pop("itls", None)
        metrics = _numbers({LIST_NAMES.get(k, k): v for k, v in row.items()})
        if isinstance(gaps, list) and gaps and metrics.get("output_len", 0) > 1:
            metrics |= {"chunks": float(len(gaps)), "tokens_after_first": metrics["output_len"] - 1}
        rows.append(Result(f"request {i}", i, metrics, error=failed))
    harness = "SGLang" if "accept_length" in run or "total_output_tokens_retokenized" in run else "vLLM"
    notes = [f"{len(runs)} runs in the file: the last one is taken"] if len(runs) > 1 else []
    return Results(harness, rows, notes)


LIST_NAMES = {"output_lens": "output_len", "input_lens": "input_len", "ttfts": "ttft", "latencies": "latency"}


def _lm_eval(values: Values) -> Results | None:
    if not (isinstance(values[0][1], Mapping) and {"doc_id", "doc"} <= values[0][1].keys()):
        return None
    rows = []
    for i, (place, given) in enumerate(values):
        value = _mapping(given, None)
        doc = _mapping(value, "doc")
        own = {k: v for k, v in value.items() if k not in ("doc", "doc_id", "arguments", "resps", "filtered_resps")}
        rows.append(Result(place, i, _numbers(own), _ids(doc), _content(value)))
    return Results("lm-eval", rows)


def _specdec(values: Values) -> Results | None:
    runs = [v for _, v in values if isinstance(v, Mapping) and isinstance(v.get("Request_AL"), Mapping)]
    if runs and len(runs) == len(values):
        rows = []
        for i, (name, al) in enumerate(runs[-1]["Request_AL"].items()):
            turns = _real([*al.values()] if isinstance(al, Mapping) else [al])
            mean = sum(turns) / len(turns) if turns else math.nan  # mean over turns: all that this file keeps
            metrics = _numbers({"specdec_acceptance_length": mean})
            rows.append(Result(f"Request_AL {name}", i, metrics, (str(name),)))
        notes = [f"{len(runs)} runs in the file: the last one is taken"] if len(runs) > 1 else []
        return Results("specdec_bench", rows, notes)
    if not any("acceptance_lengths" in v for _, v in values if isinstance(v, Mapping)):
        return None
    rows = []
    for i, (place, given) in enumerate(values):
        value = _mapping(given, None)
        steps = _real(value.get("acceptance_lengths"))
        metrics = {"tokens": float(sum(steps)), "steps": float(len(steps))} if steps else {}
        failed = str(value.get("error_message") or "failed") if value.get("error") else None
        rows.append(Result(place, i, metrics, _ids(value), _content(value), failed))
    return Results("specdec_bench", rows)


def _rows(values: Values) -> Results:
    """Anything with an id and numbers; a document that holds the rows under some key is opened."""
    if len(values) == 1 and isinstance(values[0][1], Mapping):
        inner = [v for v in values[0][1].values() if isinstance(v, list) and v and isinstance(v[0], Mapping)]
        if inner:
            longest: list[Any] = max(inner, key=lambda found: len(list(found)))
            values = [(f"row {i}", v) for i, v in enumerate(longest)]
    rows = []
    for i, (place, value) in enumerate(values):
        if not isinstance(value, Mapping):
            rows.append(Result(place, i, {}, error=NO_ROW))
            continue
        failed = value.get("error")
        if failed is None and value.get("success") is False:
            failed = "failed"
        metrics = _numbers({k: v for k, v in value.items() if k not in ID_KEYS})
        rows.append(Result(place, i, metrics, _ids(value), _content(value), _said(failed)))
    return Results("table", rows)


READERS: tuple[Callable[[Values], Results | None], ...] = (_aiperf, _guidellm, _lists, _lm_eval, _specdec, _rows)


# --------------------------------------------------------------------------------------------------- small parts


def _numbers(value: Mapping[str, Any]) -> dict[str, float]:
    """Return every finite number below a mapping by name, and `tokens` and `steps` where they can be told."""
    found: dict[str, float] = {}

    def walk(value: Any, name: str, depth: int) -> None:
        if isinstance(value, bool):
            return
        if isinstance(value, int | float):
            short = name.rpartition(".")[2]
            if abs(value) < 1e300:  # not so for NaN
                found[short if short not in found else name] = float(value)
        elif isinstance(value, Mapping) and depth < NESTED:
            for key, inner in value.items():
                walk(inner, f"{name}.{key}" if name else str(key), depth + 1)

    walk(value, "", 0)
    steps = next((found[k] for k in STEPS if k in found), None)
    accepted = next((found[k] for k in ACCEPTED if k in found), None)
    tokens = next((found[k] for k in TOKENS if k in found), None)
    if steps is not None and steps > 0 and (accepted is not None or tokens is not None):
        found["steps"] = steps
        found["tokens"] = accepted + steps if accepted is not None else float(tokens or 0.0)
    return found


def _mapping(value: Any, key: str | None) -> Mapping[str, Any]:
    inner = value if key is None else (value.get(key) if isinstance(value, Mapping) else None)
    return inner if isinstance(inner, Mapping) else {}


def _real(values: Any) -> list[float]:
    """Return the finite numbers of a list; nothing where it is none."""
    given = values if isinstance(values, list) else []
    kept = [v for v in given if isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e300]
    return [float(v) for v in kept]


def _ids(value: Mapping[str, Any], keys: Sequence[str] = ID_KEYS) -> tuple[str, ...]:
    """Return every id of a row as text, best first; a CSV's 81.0 is 81."""
    found = []
    for key in keys:
        given = value.get(key)
        if isinstance(given, float) and given.is_integer():
            given = int(given)
        if isinstance(given, str | int) and not isinstance(given, bool) and str(given).strip():
            found.append(str(given))
    return tuple(dict.fromkeys(found))


def _content(value: Any) -> str | None:
    """Return the id of the prompt that a row holds itself, or None."""
    try:
        prompt, _ = to_prompt(Row(value, "result"), "results")
        return prompt_id(prompt.messages, prompt.tools)
    except (BadRow, ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError):
        return None


def _said(error: Any) -> str | None:
    if error in (None, "", False, {}, []):
        return None
    if isinstance(error, Mapping):
        error = error.get("message") or error.get("type") or "failed"
    return " ".join(str(error).split())[:120]


def need_metric(results: Results, name: str) -> None:
    """Raise UsageError unless some row has the metric."""
    known = results.metrics()
    if name not in known:
        from promptkit.registry import suggest

        raise UsageError(f"no row has a metric {name!r} ({results.harness} results)", hint=suggest(name, known[:40]))
