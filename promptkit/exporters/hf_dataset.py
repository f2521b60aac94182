"""A Hugging Face data set: parquet and a card that declares a configuration for the whole pack and one per domain.

    datasets.load_dataset("promptkit-out/exports/hf-dataset", split="test")            all prompts, in pack order
    datasets.load_dataset("promptkit-out/exports/hf-dataset", "math", split="test")    one domain

Columns are those of the pack's rows. Messages have one schema for all: `tool_calls` stays a list of structs whose
`arguments` is the raw string; `tools` is JSON text, because schemas of tools have no common columns. Nothing is lost.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from promptkit.exporters.carry import words
from promptkit.exporters.job import Job, Piece
from promptkit.exporters.tables import parquet

if TYPE_CHECKING:
    from promptkit.pack import PackPrompt


def hf_dataset(job: Job) -> Piece:
    """Return data/DOMAIN.parquet for each domain and README.md, its card."""
    if not job.prompts:
        return Piece({}, "")
    schema = _schema()
    domains = sorted({p.domain or "" for p in job.prompts})
    stems = {d: w if w != "default" else "default_domain" for d, w in words(domains).items()}
    files = {
        f"data/{stems[d]}.parquet": parquet([_row(job, p) for p in job.prompts if (p.domain or "") == d], schema)
        for d in domains
    }
    files["README.md"] = _card(job, stems)
    load = f"import datasets; print(datasets.load_dataset({job.directory!r}, split='test'))"
    save = f"import datasets; datasets.load_dataset({job.directory!r}).save_to_disk({job.directory + '-arrow'!r})"
    return Piece(
        files=files,
        command=job.shell("python", "-c", load),
        ids=[(p.id, p.id) for d in domains for p in job.prompts if (p.domain or "") == d],
        notes=["As an Arrow directory (load_from_disk): " + job.shell("python", "-c", save)],
    )


def _schema() -> Any:
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    call = pa.struct(
        {"id": text, "type": text, "function": pa.struct({"name": text, "arguments": text})},
    )
    message = pa.struct(
        {
            "role": text,
            "content": text,
            "reasoning": text,
            "name": text,
            "tool_call_id": text,
            "tool_calls": pa.list_(call),
        }
    )
    return pa.schema(
        {
            "id": text, "domain": text, "messages": pa.list_(message), "tools": text,
            "expected_output_tokens": number, "max_tokens": number, "source": text, "licence": text, "language": text,
            "in_training": pa.bool_(), "tags": pa.list_(text), "n_prompt_tokens": number, "n_templated_tokens": number,
        }
    )  # fmt: skip


def _row(job: Job, prompt: PackPrompt) -> dict[str, Any]:
    """Return a pack's row; `max_tokens` is the length to ask for, also where none is expected."""
    return {
        **prompt.extra, "id": prompt.id, "domain": prompt.domain or "", "messages": prompt.messages,
        "tools": None if prompt.tools is None else json.dumps(prompt.tools, ensure_ascii=False),
        "expected_output_tokens": prompt.expected_output_tokens, "max_tokens": job.length(prompt),
        "source": prompt.source,
    }  # fmt: skip


def _card(job: Job, stems: dict[str, str]) -> bytes:
    """Return the card. Its YAML is what decides what `load_dataset` reads; every scalar is quoted as JSON."""
    head = [
        "---",
        "configs:",
        "- config_name: default",
        "  default: true",
        "  data_files:",
        "  - split: test",
        "    path:",
    ]
    head += [f"    - {json.dumps(f'data/{s}.parquet')}" for s in stems.values()]
    for stem in stems.values():
        head += [
            f"- config_name: {json.dumps(stem)}", "  data_files:", "  - split: test",
            f"    path: {json.dumps(f'data/{stem}.parquet')}",
        ]  # fmt: skip
    licences = sorted({str(p.extra.get("licence") or "NOASSERTION") for p in job.prompts})
    body = [
        "---", "", f"# {job.name}", "",
        f"{len(job.prompts)} prompts for benchmarks, exported by promptkit. Configurations: `default` (all), one per",
        f"domain. Licences of the rows: {', '.join(licences)}; the column `licence` has each row's.", "",
    ]  # fmt: skip
    return "\n".join(head + body).encode()
