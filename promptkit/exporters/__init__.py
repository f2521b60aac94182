"""Packs in the file and the command of each harness, with what that harness will lose.

    export(load_pack("coding-agentic"), "openai-batch", "out")
    out/openai-batch/coding-agentic.jsonl                 the file the harness reads, all prompts in pack order
    out/openai-batch/by-domain/coding-agentic-math.jsonl  the same, one domain: most harnesses lose the label
    out/openai-batch/ids.jsonl                            {"domain", "id", "reported"}: results back to prompts
    out/openai-batch/export.json                          the command, the losses, ids left out, the citation, hashes

An exporter is a pure function from a `Job` (prompts and options) to a `Piece` (bytes by file name, one command line,
losses, ids); the door calls it for the whole pack and for each domain, and writes all of it or nothing. Commands
leave `$BASE_URL` (the server's root, without /v1) and `$MODEL` to the shell. They send each prompt once: no warm-up,
no repetition, no shuffling.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptkit import registry
from promptkit.errors import UsageError
from promptkit.exporters.aiperf import aiperf, aiperf_mooncake, aiperf_multi_turn, aiperf_single_turn
from promptkit.exporters.evalscope import evalscope
from promptkit.exporters.genai_perf import genai_perf
from promptkit.exporters.guidellm import guidellm
from promptkit.exporters.hf_dataset import hf_dataset
from promptkit.exporters.inspect_ai import inspect_ai
from promptkit.exporters.job import OUTPUT_TOKENS, Exporter, Job, Loss, Piece
from promptkit.exporters.lighteval import lighteval
from promptkit.exporters.lm_eval import lm_eval
from promptkit.exporters.load_scripts import k6, locust
from promptkit.exporters.openai_batch import openai_batch
from promptkit.exporters.promptfoo import promptfoo
from promptkit.exporters.questions import mt_bench, specdec_bench
from promptkit.exporters.sglang import sglang, sglang_agentic_trace
from promptkit.exporters.specforge import specforge
from promptkit.exporters.trtllm import trtllm
from promptkit.exporters.vllm import vllm, vllm_multi_turn, vllm_spec_bench, vllm_speed_bench
from promptkit.grammars import template_named

if TYPE_CHECKING:
    from promptkit.pack import Pack
    from promptkit.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Export:
    """What was written: paths as a shell in this directory would name them."""

    target: str
    files: list[str]
    command: str
    losses: list[Loss]
    ids: str
    commands: dict[str, str]  # domain -> the command for that domain alone
    notes: list[str]
    left_out: list[str]  # ids of the prompts that the target cannot carry; `losses` say why

    def to_json(self) -> dict[str, Any]:
        """Return the document of `export --json`."""
        return {
            "target": self.target,
            "files": self.files,
            "command": self.command,
            "losses": [{"what": x.what, "count": x.count, "note": x.note} for x in self.losses],
            "ids": self.ids,
            "commands": self.commands,
            "notes": self.notes,
            "left_out": self.left_out,
        }


EXPORTERS: dict[str, Exporter] = {
    "vllm": vllm,
    "vllm-spec-bench": vllm_spec_bench,
    "vllm-speed-bench": vllm_speed_bench,
    "vllm-multi-turn": vllm_multi_turn,
    "sglang": sglang,
    "sglang-agentic-trace": sglang_agentic_trace,
    "aiperf": aiperf,
    "aiperf-single-turn": aiperf_single_turn,
    "aiperf-multi-turn": aiperf_multi_turn,
    "aiperf-mooncake": aiperf_mooncake,
    "guidellm": guidellm,
    "trtllm": trtllm,
    "genai-perf": genai_perf,
    "k6": k6,
    "locust": locust,
    "openai-batch": openai_batch,
    "evalscope": evalscope,
    "hf-dataset": hf_dataset,
    "inspect": inspect_ai,
    "lighteval": lighteval,
    "lm-eval": lm_eval,
    "mt-bench": mt_bench,
    "promptfoo": promptfoo,
    "specdec-bench": specdec_bench,
    "specforge": specforge,
}


# Clients that count tokens for themselves and look for the tokenizer under the model's name.
LOADS_TOKENIZER = frozenset({
    "vllm", "vllm-spec-bench", "vllm-speed-bench", "sglang", "sglang-agentic-trace", "aiperf", "aiperf-single-turn",
    "aiperf-multi-turn", "aiperf-mooncake", "genai-perf",
})  # fmt: skip


def export(
    pack: Pack | str | os.PathLike[str],
    to: str | Exporter,
    out: str | os.PathLike[str] = "promptkit-out/exports",
    *,
    base_url: str | None = None,
    model: str | None = None,
    template: str | None = None,
    tokenizer: str | os.PathLike[str] | Tokenizer | None = None,
    output_tokens: int = OUTPUT_TOKENS,
    concurrency: int = 1,
) -> Export:
    """Write `pack` for the harness `to` under `out/TARGET/` and return what was written.

    `to` is a name of `EXPORTERS` or a function from Job to Piece. `base_url` (without /v1) and `model` are put into
    the command, else left to the shell as $BASE_URL and $MODEL. `template` names the chat template for targets that
    take templated text (default: the pack's own), `tokenizer` is a promptkit Tokenizer or its path, for targets that
    take ids. `output_tokens` is the output length of rows that know none.

    A second export of the same target replaces the first, whole. Raises UsageError for an unknown target or a bad
    option, InputError where not one prompt of the pack can be carried.
    """
    from promptkit.pack import load_pack

    loaded = load_pack(pack) if isinstance(pack, str | os.PathLike) else pack
    make = registry.resolve("exporters", to, EXPORTERS)
    target = to if isinstance(to, str) else getattr(to, "__name__", "custom").replace("_", "-")
    for option, number in (("output_tokens", output_tokens), ("concurrency", concurrency)):
        if number < 1:
            raise UsageError(f"{option} is {number}", hint="a number above 0")
    if model is not None and not model.strip():
        raise UsageError("the model's name is empty", hint="give it as the server names it, or leave it to $MODEL")
    if base_url is not None and not re.match(r"https?://[^/\s]", base_url):
        raise UsageError(f"base URL {base_url!r}: no http:// or https:// URL", hint="such as http://localhost:8000")
    if template is not None:
        template_named(template)  # an unknown name is an error, whatever the target makes of it
    directory = Path(out) / target
    shown = f"./{directory}" if str(directory).startswith("-") else str(directory)  # no option of the client
    prompts = list(loaded)
    name = f"{loaded.name}-pack" if loaded.name in ("ids", "export") else loaded.name  # names of our own files
    job = Job(
        prompts=prompts,
        name=name,
        directory=shown,
        base_url=base_url.rstrip("/").removesuffix("/v1") if base_url else None,
        model=model,
        template=template or (loaded.manifest.get("template") or {}).get("name"),
        tokenizer=_tokenizer(tokenizer),
        tokenizer_path=os.fspath(tokenizer) if isinstance(tokenizer, str | os.PathLike) else None,
        output_tokens=output_tokens,
        replay=(loaded.manifest.get("recipe") or {}).get("turns") == "all",
        concurrency=concurrency,
        pack=prompts,
    )
    whole = make(job)
    files, commands, notes = dict(whole.files), {}, list(whole.notes)
    if job.tokenizer_path is None and target in LOADS_TOKENIZER:
        notes.append("The client loads a tokenizer by the name of the model; where there is none: --tokenizer PATH")
    carried = {prompt_id for prompt_id, _ in whole.ids}
    for domain, some in loaded.by_domain().items():
        folder = _folder(domain)
        part = make(replace(job, prompts=some, name=f"{name}-{folder}", directory=f"{shown}/by-domain/{folder}"))
        if part.ids:
            files |= {f"by-domain/{folder}/{file}": data for file, data in part.files.items()}
            commands[domain] = part.command
        if fewer := sum(p.id in carried for p in some) - len(part.ids):
            why = "; ".join(f"{x.what}, {x.note}" for x in part.losses)
            notes.append(f"The file of {domain} alone lacks {fewer} prompts that the whole has: {why}")
    return _write(loaded, target, directory, replace(whole, notes=notes), files, commands)


def _folder(domain: str) -> str:
    """Return the name of a domain's folder: itself, or with a hash where it could not name one."""
    safe = re.sub(r"[^A-Za-z0-9_-]+", "-", domain)[:64] or "none"
    return domain if safe == domain else f"{safe}-{hashlib.sha256(domain.encode()).hexdigest()[:8]}"


def _tokenizer(given: Any) -> Tokenizer | None:
    if given is None or not isinstance(given, str | os.PathLike):
        return given
    from promptkit.tokenizers import load_tokenizer

    return load_tokenizer(os.fspath(given))


def _write(
    pack: Pack, target: str, directory: Path, whole: Piece, files: dict[str, bytes], commands: dict[str, str]
) -> Export:
    from promptkit.conversation import canonical
    from promptkit.errors import InputError
    from promptkit.writing import publish, temporary_beside, write_new

    if not whole.ids:
        reasons = [x for x in whole.losses if x.note.startswith("left out")] or whole.losses
        why = "; ".join(f"{x.what} ({x.count})" for x in reasons) or "the pack is empty"
        raise InputError(
            f"export of {pack.name} to {target}: not one of {len(pack)} prompts can be carried: {why}",
            hint=reasons[0].note if reasons else "give a pack with prompts",
        )
    domains = {p.id: p.domain for p in pack}
    ids = [{"domain": domains.get(i), "id": i, "reported": reported} for i, reported in whole.ids]
    files["ids.jsonl"] = b"".join(canonical(row) + b"\n" for row in ids)
    named = [str(directory / name) for name in sorted(files)]
    kept = {prompt_id for prompt_id, _ in whole.ids}
    left_out = [p.id for p in pack if p.id not in kept]
    done = Export(
        target, named, whole.command, whole.losses, str(directory / "ids.jsonl"), commands, whole.notes, left_out
    )
    about = {
        **done.to_json(),
        "files": [{"path": n, "sha256": hashlib.sha256(b).hexdigest()} for n, b in sorted(files.items())],
        "pack": pack.citation,
        "ids": "ids.jsonl",
    }
    files["export.json"] = json.dumps(about, ensure_ascii=True, indent=1, sort_keys=True).encode() + b"\n"
    with temporary_beside(directory, directory=True) as work:
        for name, data in sorted(files.items()):
            write_new(work / "export" / name, data)
        publish(work / "export", directory)
    return done
