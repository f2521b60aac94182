"""`promptkit score`: one verdict object drives the text, the JSON, the markdown, the report and the exit code."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import click

from promptkit.errors import UsageError
from promptkit.visible import count, interval, is_number, number, one_line, p_value, percent

from .app import SEED, device_option, shared
from .console import Progress, Talk, plain, shell, snippet

LISTED = 10  # prompts and clusters shown in the text; --json and the report hold all
DIGITS = 2  # of a printed statistic: what a gate judges

# option -> (key of the score, passes when value <= limit)
GATES = {
    "max_ratio": ("ratio", True),
    "min_fidelity": ("fidelity", False),
    "min_coverage": ("coverage", False),
    "min_mix_overlap": ("mix_overlap", False),
    "min_n": ("n", False),
}


@click.command(
    "score",
    epilog="""\b
Examples:
  promptkit score prompts.yaml
  promptkit score bench.py --against promptkit-out/reference --report score.html
  promptkit score results.jsonl --json --max-ratio 1.5 --min-fidelity 0.9

\b
PROMPTS is YAML, JSONL, JSON, CSV, TXT, Parquet, a pack, a results file with
answers, a benchmark script (read, never run), or - for standard input. Of a
training directory a sample of rows is scored: has the mix drifted?
A gate that fails, or whose value does not exist, exits 3.""",
)
@click.argument("prompts")
@click.option("--against", metavar="REF", help="A reference, or the directory of a build; default: the one built here.")
@click.option("--report", metavar="FILE", help="Also write an HTML report.")
@click.option("--markdown", is_flag=True, help="Print a short summary for a pull request instead of tables.")
@click.option(
    "--format",
    "fmt",
    metavar="FORMAT",
    help="yaml, jsonl, json, csv, tsv, txt, parquet, arrow or py; default: by content.",
)
@click.option("--column", metavar="FIELD", help="The field that holds the prompt, where it has an unusual name.")
@click.option(
    "--response", metavar="FIELD", help="The field that holds a model's answers, where it has an unusual name."
)
@click.option(
    "--weights",
    metavar="FIELD",
    help="The field that says how often a prompt is run; default: `weight` where there is one.",
)
@click.option("--sample", type=click.IntRange(2), metavar="N", help="Rows of a training directory (default 1000).")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of the null draws, and of that sample.")
@click.option("--draws", type=click.IntRange(99), default=1999, show_default=True, help="Null draws per batch.")
@click.option(
    "--weight", type=click.Choice(["rows", "tokens"]), help="What the mix is weighted by; default: as it was built."
)
@click.option(
    "--margin", type=click.FloatRange(0, 1, min_open=True), default=0.1, show_default=True, metavar="X",
    help="Excess up to which a set counts as representative.",
)
@click.option(
    "--labeller",
    metavar="MODULE:CALLABLE",
    help="The labeller that the reference was built with, where it is your own.",
)
@device_option
@click.option("--max-ratio", type=float, metavar="X", help="Gate: distance over the noise floor.")
@click.option("--min-fidelity", type=float, metavar="X", help="Gate: share of prompts that belong.")
@click.option("--min-coverage", type=float, metavar="X", help="Gate: share of the mix that is reached.")
@click.option("--min-mix-overlap", type=float, metavar="X", help="Gate: overlap of the cluster shares.")
@click.option("--min-n", type=int, metavar="N", help="Gate: number of prompts.")
@shared
def score_command(
    talk: Talk, prompts: str, against: str | None, report: str | None, markdown: bool, fmt: str | None,
    column: str | None, response: str | None, weights: str | None, sample: int | None, seed: int, draws: int,
    weight: str | None, margin: float, labeller: str | None, device: str, **limits: float | None,
) -> int:  # fmt: skip
    """Say whether PROMPTS look like the training mix: how far, is that chance, what is foreign, what is missing."""
    # What a score makes lives until its end; looking for garbage in it again and again is a tenth of a cold run.
    gc.disable()
    click.get_current_context().call_on_close(gc.enable)
    from promptkit.candidates import read_candidates
    from promptkit.conversation import opening
    from promptkit.reference import load_reference
    from promptkit.scoring import score

    if markdown and talk.json:
        raise UsageError("--markdown and --json together", hint="one result goes to stdout: choose one of the two")
    for name, limit in limits.items():
        if limit is not None and limit != limit:
            raise UsageError(f"--{name.replace('_', '-')} is NaN", hint="give a number")
    path = resolve_reference(talk, against)
    drawn = None
    if prompts != "-" and fmt is None and not Path(prompts).is_file():  # drift loads all readers
        from promptkit.drift import SAMPLE, draw, is_training_directory

        if is_training_directory(prompts):
            with Progress(talk) as progress:
                drawn = draw(prompts, size=sample or SAMPLE, seed=seed, progress=progress)
    if sample is not None and drawn is None:
        raise UsageError(f"--sample {sample}: {prompts} is no training directory", hint="leave it out: all are scored")
    candidates = (
        drawn.prompts if drawn else read_candidates(prompts, fmt=fmt, column=column, response=response, weights=weights)
    )
    if not drawn:
        say_what_was_read(talk, candidates, prompts)
    with Progress(talk) as progress:
        progress("load the reference", 0)
        reference = load_reference(path, device=device)
        weight = weight or reference.weight
        progress("score", 0, len(candidates))
        result = score(
            candidates, reference, seed=seed, draws=draws, weight=weight, margin=margin, labeller=labeller
        )
    if weight == "tokens":
        talk.say("weight: shares of the mix count supervised tokens, not rows")
    verdict = plain(result.to_json())
    texts = [opening(p.messages) for p in candidates]
    verdict["gates"] = judge(verdict, limits)
    if drawn:
        verdict["drift"] = {"directory": prompts, "rows": drawn.rows, "sampled": len(candidates), "lossy": drawn.lossy}
    if report:
        from promptkit.report import render

        from .packs import pack_beside

        pack = pack_beside(path)
        render(score=verdict, reference=reference, pack=pack, texts=texts, out=report, title=prompts)
    if talk.json:
        talk.document(verdict)
    elif markdown:
        from promptkit.report import to_markdown

        talk.line(to_markdown(verdict, texts), paste=True)
    else:
        show_score(talk, verdict, texts)
    again = ["promptkit", "score", prompts, *(["--against", against] if against else [])]
    if report:
        talk.say(f"report: {report}")
    if prompts == "-":  # what stood on standard input is gone: no command of ours would work when pasted
        pass
    elif report:
        talk.next(*again, "--markdown", note="a summary for a pull request")
    else:
        talk.next(*again, "--report", "score.html", note="everything, to look at")
    if drawn and drawn.lossy:
        talk.error(f"{prompts}: files or rows failed; the rest was scored", shell("promptkit", "inspect", prompts))
    return 3 if any(not g["passed"] for g in verdict["gates"]) else 4 if drawn and drawn.lossy else 0


# -- the reference -------------------------------------------------------------------------------------------------


def references_here(folder: Path) -> list[Path]:
    """Return the references built in a directory: `reference/` in it or in one of its directories, default first."""
    try:
        near = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError:
        return []
    places = [folder / "promptkit-out", folder, *near]
    found = [p / "reference" for p in places if (p / "reference" / "reference.json").is_file()]
    return list(dict.fromkeys(found))


def resolve_reference(talk: Talk, against: str | None) -> str:
    """Return the reference to use: the one given, else the only one built here; say which."""
    if against is not None:
        inside = Path(against) / "reference"
        return str(inside) if (inside / "reference.json").is_file() else against
    found = references_here(Path())
    if not found:
        raise UsageError(
            "no reference to score against: none was built in this directory",
            hint=f"{shell('promptkit', 'build', '--from', 'TRAINING_DIR')}, or --against REF (`promptkit list`)",
        )
    if len(found) > 1:
        names = "\n".join(f"  {p}" for p in found)
        raise UsageError(
            f"{len(found)} references in this directory:\n{names}", hint=f"choose one: --against {shell(found[0])}"
        )
    talk.say(f"against: {found[0]} (the only reference built here)")
    return str(found[0])


def say_what_was_read(talk: Talk, candidates: list[Any], path: str) -> None:
    scripts: dict[str, int] = {}
    for p in candidates:
        name = (p.extra or {}).get("script_name")
        if name:
            scripts[name] = scripts.get(name, 0) + 1
    if scripts:
        lists = ", ".join(f"{n} ({k})" for n, k in scripts.items())
        talk.say(f"prompts: {len(candidates)} read from the lists {lists} of {path}; the script was not run")
    with_answer = sum(p.response is not None for p in candidates)
    if with_answer:
        talk.say(f"responses: {with_answer} of {len(candidates)} candidates carry one; they are scored too")


# -- gates ---------------------------------------------------------------------------------------------------------


def judge(verdict: dict[str, Any], limits: dict[str, float | None]) -> list[dict[str, Any]]:
    """Return one entry per gate given: what was judged (the value as printed), the limit, and whether it passed."""
    gates = []
    for option, limit in limits.items():
        if limit is None:
            continue
        key, at_most = GATES[option]
        value = verdict.get(key)
        shown = round(value, DIGITS) if is_number(value) else None
        passed = shown is not None and (shown <= limit if at_most else shown >= limit)
        gates.append({"gate": option, "key": key, "value": shown, "limit": limit, "passed": passed})
    return gates


# -- text ----------------------------------------------------------------------------------------------------------


def show_score(talk: Talk, v: dict[str, Any], texts: list[str]) -> None:
    """Print the verdict, its three parts, the distance, and what to do about it."""
    style = {"yes": "bold green", "no": "bold red"}.get(v.get("verdict_code") or "", "bold yellow")
    talk.line(v["verdict"], style)
    drift = v.get("drift")
    if drift:
        talk.line()
        talk.line(
            f"drift: {count(drift['sampled'])} of {count(drift['rows'])} rows of {drift['directory']} stand for that"
            f" mix, beside the mix of {(v.get('reference') or {}).get('path')}"
        )
    if v.get("n") == 1 and v.get("prompts"):
        _show_one(talk, v["prompts"][0])
    else:
        _show_parts(talk, v)
        _show_foreign(talk, v, texts)
    _show_missing(talk, v)
    _show_domains(talk, v)
    _show_structure(talk, v, texts)
    _show_responses(talk, v)
    _show_power(talk, v)
    talk.line()
    if v.get("advice"):
        talk.line(f"size: {v['advice']}")
    if v.get("worth"):
        talk.line(f"worth: {v['worth']['text']}")
    talk.line(
        "what it is worth: a prompt score ranks sets and mixes well, single prompts poorly."
        + ("" if v.get("responses") else " Score the responses for more: give a results file with the answers.")
    )
    for g in v.get("gates", ()):
        shown = count(g["value"]) if g["key"] == "n" else number(g["value"])
        sign = "<=" if GATES[g["gate"]][1] else ">="
        said = f"gate {g['key']} {sign} {g['limit']:g}: {shown}, {'passed' if g['passed'] else 'FAILED'}"
        talk.line(said, "" if g["passed"] else "bold red")


def _show_one(talk: Talk, p: dict[str, Any]) -> None:
    """Print the values of a prompt that stands alone."""
    talk.line()
    nearest = next(iter(p.get("nearest") or ()), None)
    for name, value, note in (
        ("typicality", number(p.get("typicality")), "share of the mix that is no more typical"),
        ("closeness", number(p.get("closeness")), "mean cosine to the 10 nearest prompts of the mix"),
        ("bits", number(p.get("cross_entropy")), "per token, under a model of the mix"),
        ("tokens", count(p.get("n_tokens")), f"longer than {percent(p.get('length_percentile'))} of the mix"),
        ("domain", p.get("domain") or "-", ""),
        ("nearest", number(p.get("nearest_similarity")), snippet(nearest["text"], 50) if nearest else ""),
    ):
        talk.pair(name, f"{value}   {note}".rstrip())
    for said in p.get("outliers") or ():
        talk.line(f"odd: {said}", "yellow")
    if p.get("leaked") is True:
        talk.line("leaked: it is in the training mix, or nearly so", "yellow")


def _show_parts(talk: Talk, v: dict[str, Any]) -> None:
    chance, bounds = v.get("chance") or {}, v.get("intervals") or {}
    parts = (
        ("fidelity", "fidelity", "do these prompts belong?"),
        ("coverage", "coverage", "is the mix reached?"),
        ("mix", "mix_overlap", "are the proportions right?"),
        ("domains", "domain_overlap", "the same, by domain"),
    )
    talk.line()
    talk.table(
        ["part", ">value", "95 % interval", ">by chance", "asks"],
        [[part, number(v.get(k)), interval(bounds.get(k)), number(chance.get(k)), asks] for part, k, asks in parts],
    )
    talk.line()
    effective = v.get("n_effective")
    if is_number(effective) and effective < v["n"] - 0.5:
        talk.line(f"weights    {v['n']} prompts, weighted, tell as much as {number(effective, 1)} of equal weight")
    if not is_number(v.get("distance")):
        return
    distance, floor, ratio = number(v.get("distance"), 3), number(v.get("noise_floor"), 3), number(v.get("ratio"))
    talk.line(f"distance   {distance} = {ratio} x {floor}, the mean of random draws of {v.get('n')}")
    excess = f"{number(v.get('excess'), 3)} beyond chance (95 %: {interval(bounds.get('excess'), 3)})"
    talk.line(f"excess     {excess}, comparable across sizes")
    talk.line(
        f"p-value    {p_value(v.get('p_value'))} (belonging {p_value(v.get('p_fidelity'))},"
        f" proportions {p_value(v.get('p_mix'))})"
    )
    if is_number(v.get("typicality")):
        talk.line(f"typicality {number(v['typicality'])} on average (the mix: 0.50): what ranks sets by acceptance")


def _show_foreign(talk: Talk, v: dict[str, Any], texts: list[str]) -> None:
    rows = v.get("prompts") or []
    foreign = sorted(
        (p for p in rows if p.get("belongs") is False), key=lambda p: (p.get("typicality") or 0.0, p["index"])
    )
    talk.heading(
        f"does not belong: {len(foreign)} of {len(rows)} (chance alone would list about {0.05 * len(rows):.1f})"
    )
    if foreign:
        talk.table(
            [">typicality", "id", "domain", "prompt"],
            [
                [number(p.get("typicality"), 3), short_id(p), p.get("domain") or "", one_line(_text(texts, p), 300)]
                for p in foreign[:LISTED]
            ],
            wide="prompt",
        )
    if len(foreign) > LISTED:
        talk.line(f"and {len(foreign) - LISTED} more; --report or --json shows all")
    leaked = sum(p.get("leaked") is True for p in rows)
    if leaked and v.get("drift"):
        talk.line(f"in both: {leaked} of {len(rows)} rows are in the sample of the reference, or nearly so")
    elif leaked:
        talk.line(f"leaked: {leaked} of {len(rows)} prompts are in the training mix, or nearly so", "yellow")


def short_id(prompt: dict[str, Any]) -> str:
    """Return an id as a table can hold it: of a content hash, the first 8 of 32 hex."""
    name = str(prompt["id"])
    return name[:8] if re.fullmatch(r"[0-9a-f]{32}(#\d+)?", name) else one_line(name, 16)


def _text(texts: list[str], prompt: dict[str, Any]) -> str:
    index = prompt.get("index")
    return texts[index] if isinstance(index, int) and index < len(texts) else str(prompt.get("text") or "")


def _show_missing(talk: Talk, v: dict[str, Any]) -> None:
    missing = v.get("missing") or []
    if not missing:
        return
    talk.heading("what is missing (regions of the mix with too few prompts)")
    width = min(talk.out.width, 120)
    for m in missing[: LISTED // 2]:
        shares = f"{percent(m.get('reference_share'))} of the mix, {percent(m.get('candidate_share'))} here"
        talk.line(f"{snippet(m.get('name') or m.get('cluster'), width - len(shares) - 4)}: {shares}")
        for example in (m.get("examples") or [])[:2]:
            talk.line(f"    {snippet(example if isinstance(example, str) else example.get('text', ''), width - 5)}")
    if len(missing) > LISTED // 2:
        talk.line(f"and {len(missing) - LISTED // 2} more regions; --report or --json shows all")


def _show_domains(talk: Talk, v: dict[str, Any]) -> None:
    domains = v.get("domains") or []
    if not domains:
        return
    rows = [(d["domain"], d.get("reference_share") or 0.0, d.get("candidate_share") or 0.0, _off(d)) for d in domains]
    rows.sort(key=lambda r: (-r[1], -r[2], r[0]))
    top = max(max(r[1:3]) for r in rows)
    talk.heading("domains")
    talk.table(
        ["domain", ">mix", "", ">here", "", ""],
        [
            [name, percent(mix), talk.bar(mix, top, 14), percent(here), talk.bar(here, top, 14), off]
            for name, mix, here, off in rows
        ],
    )


def _off(row: dict[str, Any]) -> str:
    """Say whether a share is beyond what chance makes, with all shares of the table tested at once."""
    p, mix, here = row.get("p_value"), row.get("reference_share") or 0.0, row.get("candidate_share") or 0.0
    return ("too few" if here < mix else "too many") if is_number(p) and p < 0.05 else ""


def _show_structure(talk: Talk, v: dict[str, Any], texts: list[str]) -> None:
    """Print lengths, turns and tools where they differ from the mix's, and the prompts that stand out by them."""
    rows = v.get("prompts") or []
    off = [s for s in v.get("structure") or [] if is_number(s.get("p_value")) and s["p_value"] < 0.05]
    odd = [p for p in rows if p.get("outliers")] if len(rows) > 1 else []
    if not off and not odd:
        return
    talk.heading("length and structure")
    for s in off:
        show = count if s["what"].startswith("median") else percent
        mix, here = (show(round(x) if show is count else x) for x in (s["reference"], s["candidates"]))
        talk.line(f"{s['what']}: {mix} in the mix, {here} here")
    if len(odd) > 0.01 * len(rows) + 1 or 0 < len(odd) <= 3:
        talk.line(f"odd ones: {len(odd)} of {len(rows)} (chance alone would list about {0.01 * len(rows):.1f})")
        width = min(talk.out.width, 120)
        for p in odd[:3]:
            said = f"    {'; '.join(p['outliers'])}: "
            talk.line(said + snippet(_text(texts, p), max(width - len(said), 8)))


def _show_responses(talk: Talk, v: dict[str, Any]) -> None:
    r = v.get("responses")
    if r:
        talk.line()
        talk.line(
            f"responses  {r.get('n')} scored: fidelity {number(r.get('fidelity'))},"
            f" {number(r.get('cross_entropy'))} bits per token (what predicts acceptance best)"
        )


def _show_power(talk: Talk, v: dict[str, Any]) -> None:
    known = [p for p in v.get("power") or [] if is_number(p.get("power")) and p.get("n") == v.get("n")]
    unseen = [f"{p['change']} (found in {100 * p['power']:.0f} % of tries)" for p in known if p["power"] < 0.8]
    if known:
        talk.line()
    if unseen:
        talk.line(f"{v['n']} prompts cannot reliably see: {'; '.join(unseen)}")
    elif known:
        talk.line(f"{v['n']} prompts would see, in 80 % of tries or more: {'; '.join(p['change'] for p in known)}")
