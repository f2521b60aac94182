"""Which template the rows follow, and whether the tokenizer is the one they were made with; said in sentences.

A wrong tokenizer can look like clean but different text, so that it is never taken on trust. What contradicts it:
ids that its table lacks, ids that are 32-bit numbers read as 16-bit ones, bytes that are no UTF-8, turn markers that
stand against their own grammar, no role word where one must stand, an ordinary token in the place of a turn marker,
and text that encodes to other ids than those stored. What does not: the mere absence of markers. Plain text has none,
and a family that we do not know has others; both are said, not refused.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptkit.errors import PromptkitError
from promptkit.grammars import TEMPLATES, Template
from promptkit.recover import trim
from promptkit.tokenizers import Tokenizer
from promptkit.turns import ROLE_WORDS, Walk, cut_ids, walk

Row = tuple[NDArray[Any], "NDArray[Any] | None"]

MAX_ROWS = 512
MAX_UNKNOWN = 0.001  # share of ids outside the table: more is evidence against the tokenizer (DESIGN, Settled readings)
MAX_BROKEN = 0.001  # broken UTF-8 characters an id: text that was encoded has none; wrong tables have 0.004 and more
MIN_GRAMMAR = 0.8  # share of turn markers in their place, from which a template is used
BAD_GRAMMAR = 0.5  # below it, in rows that are full of markers, the special ids are others
MIN_SAME = 0.8  # share of stored tokens that re-encoding gives again: 0.99 even if the splitting pattern is another's
PIECE_IDS, WINDOW_IDS, ENCODED_IDS = 8, 64, 40_000  # pieces that are re-encoded: least, most, and all together


@dataclass(frozen=True)
class Evidence:
    """What was found. `score` is the share of turn markers in their place; `reason` says why a tokenizer is refused."""

    template: str | None
    score: float
    lines: list[str] = field(default_factory=list)
    tokenizer_ok: bool = True
    reason: str | None = None


def detect(samples: Sequence[Row], tokenizer: Tokenizer) -> Evidence:
    """Return the template that the sampled rows (ids, loss mask or None) follow, with evidence for the tokenizer."""
    lines = [
        f"tokenizer {tokenizer.name}: {tokenizer.n_vocab:,} ids, {len(tokenizer.specials)} special",
        *tokenizer.notes,
    ]
    step = max(1, -(-len(samples) // MAX_ROWS))
    rows = [trim(np.asarray(ids), mask, None, tokenizer, None) for ids, mask in samples[::step]]
    rows = [row for row in rows if len(row[0])]
    if not rows:
        return Evidence(None, 0.0, [*lines, "no row with ids was sampled"])

    def refuse(reason: str) -> Evidence:
        return Evidence(None, 0.0, [*lines, reason], tokenizer_ok=False, reason=reason)

    if reason := _halves([np.asarray(ids) for ids, _ in samples[::step]]):
        return refuse(reason)
    n_ids = sum(len(ids) for ids, _ in rows)
    unknown = [tokenizer.n_unknown(ids) for ids, _ in rows]
    n_bad_rows = sum(1 for n in unknown if n)
    lines.append(f"{len(rows):,} rows sampled, {n_ids:,} ids, {sum(unknown):,} of them outside the table")
    if sum(unknown) > MAX_UNKNOWN * n_ids and n_bad_rows > min(1, len(rows) - 1):
        top = max(int(ids.max()) for ids, _ in rows)
        return refuse(
            f"{sum(unknown) / n_ids:.1%} of the ids, in {n_bad_rows:,} of {len(rows):,} rows, are not in the table "
            f"({tokenizer.n_vocab:,} ids; the highest one stored is {top:,})"
        )
    template, walks, score = _best(rows, tokenizer)
    covered = sum(1 for w in walks if w.n_markers)
    if template is not None:
        lines.append(
            f"template {template.name}: {covered:,} of {len(rows):,} rows hold its turn markers, "
            f"{score:.1%} of them where its grammar wants them"
        )
        if reason := _against_roles(template, walks, tokenizer, lines):
            return refuse(reason)
        if score < BAD_GRAMMAR and covered > len(rows) / 2:
            return refuse(
                f"the special tokens of {template.name} stand in {covered:,} of {len(rows):,} rows, but only "
                f"{score:.0%} of them in their place: the special ids of this tokenizer are not those of the rows"
            )
        if score < MIN_GRAMMAR:
            lines.append(f"template {template.name} is not used: its grammar does not hold")
            template = None
    broken = [_broken(ids, tokenizer) for ids, _ in rows]
    n_broken_rows = sum(1 for n in broken if n)
    lines.append(f"{sum(broken):,} characters, in {n_broken_rows:,} rows, are broken UTF-8")
    if sum(broken) > MAX_BROKEN * n_ids and n_broken_rows > min(1, len(rows) - 1):
        return refuse(
            f"{sum(broken):,} characters, in {n_broken_rows:,} of {len(rows):,} rows, are broken UTF-8 in the middle "
            "of the text: text that was encoded has none"
        )
    same, n_encoded = _same([ids for ids, _ in rows], tokenizer, template)
    if n_encoded:
        lines.append(f"decoded and encoded again, {same / n_encoded:.1%} of {n_encoded:,} ids come back")
        if same < MIN_SAME * n_encoded:
            return refuse(
                f"decoded and encoded again, only {same / n_encoded:.0%} of {n_encoded:,} ids come back: "
                "the text is not what this tokenizer would have stored so"
            )
    if template is None:
        marker = _hidden_marker([ids for ids, _ in rows], tokenizer)
        if marker is not None:
            number, share = marker
            shown = tokenizer.decode(np.array([number]))
            remark = f"id {number} stands before a role word in {share:.0%} of its places, as a turn marker does"
            if number not in tokenizer.specials.values():
                return refuse(
                    f"{remark}, but this tokenizer reads it as the text {shown!r}: its special ids are others"
                )
            lines.append(f"{remark}; {shown!r} belongs to no known template")
        lines.append("no known template: turns come from the loss mask where it tells them, else a row is one text")
        return Evidence(None, score, lines)
    lines += _mask_lines(rows, walks)
    return Evidence(_variant(template, walks, lines), round(score, 4), lines)


def _halves(rows: Sequence[NDArray[Any]]) -> str | None:
    """32-bit ids read as 16-bit ones: every second number is 0, 1 or 2."""
    even_rows = [ids for ids in rows if len(ids) >= 8 and len(ids) % 2 == 0]
    if 2 * len(even_rows) < len(rows):
        return None
    first, second = np.concatenate([x[::2] for x in even_rows]), np.concatenate([x[1::2] for x in even_rows])
    for high, low in ((second, first), (first, second)):
        if np.mean((high >= 0) & (high <= 3)) > 0.95 and np.mean((low >= 0) & (low <= 3)) < 0.5:
            return "every second id is 0, 1, 2 or 3: 32-bit ids that were read as 16-bit ones"
    return None


def _best(rows: Sequence[Row], tokenizer: Tokenizer) -> tuple[Template | None, list[Walk], float]:
    """The template with most turn markers in their place, its walks, and their share."""
    best: tuple[Template | None, list[Walk], float] = (None, [], 0.0)
    most = 0
    for t in TEMPLATES.values():
        if t.thinking or not any(m in tokenizer.specials for m in t.openers):
            continue  # a thinking variant has the same markers
        walks = [walk(t, *cut_ids(ids, tokenizer, t)) for ids, _ in rows]
        markers, good = sum(w.n_markers for w in walks), sum(max(w.n_good, 0) for w in walks)
        if markers > most:
            most, best = markers, (t, walks, good / markers)
    return best


def _against_roles(t: Template, walks: Iterable[Walk], tokenizer: Tokenizer, lines: list[str]) -> str | None:
    """In templates that write the role as text: does it read as a role?"""
    if t.header_end is None or t.grammar in ("harmony", "k3"):  # there the grammar itself asks for a role word
        return None
    headers = Counter(
        turn.header for w in walks for turn in w.turns if turn.header and turn.role in ("user", "assistant")
    )
    n, good = headers.total(), sum(c for h, c in headers.items() if h in ROLE_WORDS)
    if not n:
        return None
    lines.append("role words: " + ", ".join(f"{h!r} {c:,}" for h, c in headers.most_common(4)))
    if good < n / 2:
        first = next(h for h, _ in headers.most_common() if h not in ROLE_WORDS)
        return f"the text behind role markers reads {first!r}, not a role, in {1 - good / n:.0%} of {n:,} turns"
    return None


def _broken(ids: NDArray[Any], tokenizer: Tokenizer) -> int:
    """Broken characters inside a row, whose ends may be cut; a real U+FFFD is not broken."""
    data = tokenizer.decode_bytes(ids)
    text = data.decode("utf-8", "replace")
    return max(0, text.strip("\ufffd").count("\ufffd") - data.count(b"\xef\xbf\xbd")) if "\ufffd" in text else 0


def _same(rows: Sequence[NDArray[Any]], tokenizer: Tokenizer, template: Template | None) -> tuple[int, int]:
    """How many stored tokens re-encoding gives again, of how many; (0, 0) where the tokenizer cannot encode."""
    special = np.zeros(tokenizer.n_vocab + 1, bool)
    special[list(tokenizer.specials.values())] = True
    special |= ~tokenizer.known(np.arange(tokenizer.n_vocab + 1))
    same = n = 0
    for ids in rows:
        cuts = np.flatnonzero(special[tokenizer.clip(ids)] | (np.arange(1, len(ids) + 1) % WINDOW_IDS == 0))
        for piece in np.split(ids, cuts):
            piece = piece[1:]  # begins with the special id, or in the middle of a word
            if len(piece) < PIECE_IDS:
                continue
            data = tokenizer.decode_bytes(piece)
            text = data.decode("utf-8", "replace")
            if "\ufffd" in text or unicodedata.normalize("NFC", text) != text:
                continue
            try:
                again = tokenizer.encode(text)
            except PromptkitError:
                return 0, 0
            same += len(np.intersect1d(_spans(piece, tokenizer), _spans(again, tokenizer), assume_unique=True))
            n += len(piece)
        if n > ENCODED_IDS:
            break
    return same, n


def _spans(ids: NDArray[Any], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Where each token lies in the text: one number for its begin and end byte."""
    ends = tokenizer.spell(ids)[1]
    starts = np.concatenate([[0], ends[:-1]])
    return np.asarray(starts << 32 | ends, np.int64)


def _hidden_marker(rows: Sequence[NDArray[Any]], tokenizer: Tokenizer) -> tuple[int, float] | None:
    """An id that stands before role words, and hardly anywhere else, in most rows; and the share of its places."""
    before: Counter[int] = Counter()
    in_rows: Counter[int] = Counter()
    total: Counter[int] = Counter()
    words = {w.encode() for w in ("system", "user", "assistant", "human", "model")}
    for ids in rows:
        tokens = tokenizer.tokens(ids)
        at = [int(ids[k - 1]) for k in range(1, len(tokens)) if tokens[k] in words]
        before.update(at)
        in_rows.update(set(at))
        total.update(ids[:-1].tolist())
    for number, n in before.most_common(8):
        text = tokenizer.decode(np.array([number])).strip()
        named = number in tokenizer.specials.values() or not bool(tokenizer.known(np.array([number]))[0])
        if in_rows[number] > len(rows) / 2 and n > 0.9 * total[number] and (named or any(c.isalnum() for c in text)):
            return number, n / total[number]
    return None


def _mask_lines(rows: Sequence[Row], walks: Sequence[Walk]) -> list[str]:
    """Does the loss mask have as many runs as the row has assistant turns? A cross-check, no more."""
    agree = n = 0
    for (_, mask), w in zip(rows, walks, strict=True):
        if mask is not None and mask.any() and not mask.all():
            runs = int(np.count_nonzero(np.diff(mask.astype(np.int8), prepend=0) == 1))
            answers = sum(1 for turn in w.turns if turn.role == "assistant")
            n += 1
            agree += runs in (answers, answers - 1, 1)
    return (
        [f"the loss mask has a run for each assistant turn (or the last one) in {agree:,} of {n:,} rows"] if n else []
    )


def _variant(t: Template, walks: Sequence[Walk], lines: list[str]) -> str:
    """The thinking variant where most last assistant turns begin with a think pair."""
    if t.think is None:
        return t.name
    last = [next((x for x in reversed(w.turns) if x.role == "assistant"), None) for w in walks]
    thinks = [len(x.parts) > 1 and x.parts[1][0] == t.think[0] for x in last if x is not None]
    variants = [v.name for v in TEMPLATES.values() if v.thinking and v.openers == t.openers and v.grammar == t.grammar]
    if thinks and variants and 2 * sum(thinks) >= len(thinks):
        lines.append(f"{sum(thinks):,} of {len(thinks):,} last assistant turns begin with a think pair: {variants[0]}")
        return variants[0]
    return t.name
