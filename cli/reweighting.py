"""`promptkit reweight`: what results measured on some prompts say of the mix; a refusal exits 3."""

from __future__ import annotations

from typing import Any

import click

from promptkit.visible import is_number, number, one_line, percent

from .app import SEED, shared
from .console import Progress, Talk, plain, some

LISTED = 8  # rows of a reason, and strata that are missing, in the text; --json holds all


@click.command(
    "reweight",
    epilog="""\b
Examples:
  promptkit reweight profile_export.jsonl --pack promptkit-out
  promptkit reweight vllm.json --pack coding-agentic --ids exports/vllm/ids.jsonl --metric ttft
  promptkit reweight eagle.csv --pack promptkit-out --baseline ngram.csv

\b
RESULTS holds one row per request: AIPerf profile_export.jsonl, GuideLLM JSON,
vLLM --save-detailed, SGLang --output-details, lm-eval samples, specdec_bench,
or CSV, JSONL and Parquet with an id and numbers. Prompts that do not cover the
mix are refused: exit 3.""",
)
@click.argument("results")
@click.option("--pack", required=True, metavar="PACK", help="The prompts that were sent: a pack, or a file of prompts.")
@click.option("--against", metavar="REF", help="A reference, or the directory of a build; default: the one built here.")
@click.option("--metric", metavar="NAME", help="A column of the results; default: acceptance length.")
@click.option("--baseline", metavar="RESULTS", help="Another run of the same prompts, compared prompt by prompt.")
@click.option("--ids", metavar="FILE", help="ids.jsonl of the export, where results name no prompt.")
@click.option(
    "--weight", type=click.Choice(["rows", "tokens"]), help="What the mix is weighted by; default: as it was built."
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of the rows of a large mix that are looked at.")
@shared
def reweight_command(
    talk: Talk, results: str, pack: str, against: str | None, metric: str | None, baseline: str | None,
    ids: str | None, weight: str | None, seed: int,
) -> int:  # fmt: skip
    """Say what RESULTS, measured on any prompts, mean for the mix: an estimate with its interval, by domain."""
    from promptkit.reweighting import reweight

    from .scoring import resolve_reference

    path = resolve_reference(talk, against)
    with Progress(talk) as progress:
        progress("reweight", 0)
        found = reweight(
            results, pack=pack, against=path, metric=metric, baseline=baseline, ids=ids, weight=weight, seed=seed
        )
    value = plain(found.to_json())
    if talk.json:
        talk.document(value)
    else:
        show(talk, value)
    if value["refused"]:
        talk.next("promptkit", "score", pack, *(["--against", against] if against else []), note="what is missing")
        return 3
    return 0


def show(talk: Talk, v: dict[str, Any]) -> None:
    """Print the account of the rows, the estimate, the domains and the difference."""
    for name, account in (("results", v["joined"]), ("baseline", v["joined"].get("baseline"))):
        if account:
            _show_account(talk, name, account)
    talk.heading(one_line(v["metric"], 60) + (f" ({v['convention']})" if v["convention"] else ""))
    rows = [["as measured", *_cells(v["unweighted"]), number(float(v["n"]), 0)]]
    if not v["refused"]:
        rows.append([f"over the mix, by {v['weight']}", *_cells(v["weighted"]), f"worth {number(v['effective_n'], 0)}"])
    talk.table(["", ">mean", "95 % interval", ">prompts"], rows)
    talk.line()
    if v["refused"]:
        talk.line(f"refused: {v['reason']}", "bold red")
    talk.line(f"the prompts reach {percent(v['covered_share'])} of the mix")
    if v["missing"]:
        listed = [f"{one_line(m['name'], 36)} ({m['kind']}, {percent(m['share'])})" for m in v["missing"][:LISTED]]
        more = f"; and {len(v['missing']) - LISTED} more" if len(v["missing"]) > LISTED else ""
        talk.line(f"without a prompt: {'; '.join(listed)}{more}")
    _show_domains(talk, v)
    if v["difference"]:
        _show_difference(talk, v)


def _show_account(talk: Talk, name: str, account: dict[str, Any]) -> None:
    sums = f"{account['joined']} joined by {account['by']} + {account['unmatched']} unmatched"
    talk.line(f"{name}: {some(account['rows'], 'row')} = {sums}; {some(account['prompts'], 'prompt')}")
    for reason, n in account["reasons"].items():
        places = [r["row"] for r in account["rows_unmatched"] if r["reason"] == reason]
        listed = ", ".join(one_line(p, 24) for p in places[:3]) + (", ..." if n > 3 else "")
        talk.line(f"  unmatched ({reason}): {n}, {listed}", "yellow")
    for note in account["notes"]:
        talk.line(f"  note: {note}", "yellow")


def _cells(value: dict[str, Any]) -> list[str]:
    known = [value[k] for k in ("mean", "low", "high") if is_number(value[k])]
    shown = dict(zip(("mean", "low", "high"), (_value(value[k], known) for k in ("mean", "low", "high")), strict=True))
    both = is_number(value["low"]) and is_number(value["high"])
    return [shown["mean"], f"{shown['low']} to {shown['high']}" if both else "-"]


def _value(x: Any, beside: list[float] | None = None) -> str:
    """Return a number with as many digits as its size, or that of the numbers beside it, asks for: seconds and ms."""
    largest = max((abs(b) for b in beside or [x] if is_number(b)), default=0.0)
    if not is_number(x) or not largest:
        return number(x, 3)
    if largest >= 1e7 or largest < 1e-4:
        return f"{x:.3g}"
    return number(x, 1 if largest >= 100 else 3 if largest >= 0.1 else 6)


def _show_domains(talk: Talk, v: dict[str, Any]) -> None:
    talk.heading("domains")
    paired = v["difference"] is not None
    columns = ["domain", ">mix", ">prompts", ">mean", "95 % interval"]
    rows = []
    for d in v["domains"]:
        cells = [one_line(d["domain"], 24), percent(d["mix_share"]), number(float(d["n"]), 0), *_cells(d)]
        if paired:
            cells[-1:] = [*_cells(d["difference"]), d["better"]]
        rows.append(cells)
    if paired:
        columns = [*columns[:4], ">difference", "95 % interval", "better"]
    talk.table(columns, rows)
    if paired:
        talk.line("better: after Holm's correction over the domains, at 5 %")


def _show_difference(talk: Talk, v: dict[str, Any]) -> None:
    d = v["difference"]
    talk.heading("results less baseline, prompt by prompt")
    rows = [["as measured", *_cells(d["unweighted"])]]
    if not v["refused"]:
        rows.append(["over the mix", *_cells(d["weighted"])])
    talk.table(["", ">difference", "95 % interval"], rows)
    if v["refused"]:
        return
    talk.line()
    talk.line(f"ratio       {number(d['ratio'], 3)} (baseline {_value(d['baseline'])})")
    talk.line(f"noise floor {_value(d['smallest_seen'])}: the least difference that such prompts find in 80 % of runs")
    if d["n_needed"] is not None:
        talk.line(
            f"this difference needs {d['n_needed']:,} prompts, or {d['n_needed_unpaired']:,} in each of two sets that "
            "share none (80 % power, 5 %)"
        )
