"""What kind of work a prompt asks for: `label(["Prove that 7 divides 2^(3n) - 1."])` gives domain "math".

In: openings (system turn and first user turn), and where known the whole messages and the tool schemas. Out: one of
twelve domains, a calibrated probability, a flag `unsure`, tags, and a sentence that says why. Definitions, borderline
rules, held-out figures and the mapping to other people's label sets: docs/domains.md.

How: 115 *signals* (a fence, a diff, "translate ... into", four lettered options, a passage with a question behind
it) are read off the text; promptkit/domain_signals.py holds them with their written weights, which are the rules.
`domains.npz` holds what a logistic regression learned on top of them: corrections to the signals, and int8 weights of
hashed words and word pairs. It is trained by benchmarks/train_domains.py with whole sources held out, since a model
that has seen a source recognises the source and not the work.

Given up: meaning. Nothing here knows that the Treaty of Westphalia is history; short questions in an unknown style are
where it errs. A long text is judged by its first `HEAD` and last `TAIL` characters. Cost: under 1 ms per 150 tokens.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from promptkit import languages, workers
from promptkit.conversation import Message
from promptkit.domain_signals import PROGRAMMING, SIGNALS, alternatives, needed

if TYPE_CHECKING:
    from numpy.typing import NDArray

DOMAINS = (
    "coding", "agentic", "math", "reasoning", "encyclopedic", "writing",
    "chat", "translation", "summarization", "rag", "instruction-following", "other",
)  # fmt: skip

HEAD = 2400  # characters read from the front: system prompts and tasks say what they are early
TAIL = 800  # and from the back, where the question behind a passage stands
LONG = 8000  # characters of opening (about 2,000 tokens) from which a prompt is tagged "long"
BUCKETS = 1 << 14  # of hashed words and pairs; 14 bits * 12 domains * int8 = 196 kB
WORDS_READ = 160  # first words that are hashed: later ones are content, not request
MODEL = Path(__file__).with_name("domains.npz")
SEARCHES = Path(__file__).with_name("domain_searches.json")  # by `benchmarks/train_domains.py --searches`


@dataclass(frozen=True, slots=True)
class Label:
    """What a prompt is. `why` names the signals and words that spoke loudest for the domain."""

    domain: str
    probability: float  # calibrated on held-out sources, rounded to 4 places
    unsure: bool
    tags: tuple[str, ...]  # sorted: "code", "long", "multi-turn", "tools", "lang:de", programming languages as "python"
    why: str


def label(
    texts: Sequence[str],
    *,
    messages: Sequence[Sequence[Message] | None] | None = None,
    tools: Sequence[Any] | None = None,
    spoken: bool = True,
    explain: bool = True,
) -> list[Label]:
    """Return the domain of each text; offline, deterministic, the same in any batch.

    texts : openings; messages, tools : aligned with texts, entries may be None. A row with tools is agentic unless the
    text says otherwise very loudly. spoken : tag the natural language too, whose model takes a second to load.
    explain : say why, which takes an eighth of the time.

    >>> label(["Translate into French: the bridge is closed."])[0].domain
    'translation'
    """
    for name, given in (("messages", messages), ("tools", tools)):
        if given is not None and len(given) != len(texts):
            raise ValueError(f"label: {len(texts)} texts but {len(given)} {name}; pass one entry per text, or None")
    out: list[Label] = []
    for start in range(0, len(texts), 512):  # batches bound the memory; rows do not see each other
        batch = range(start, min(start + 512, len(texts)))
        shown = _read_texts([texts[i] for i in batch])
        read = [
            _read(texts[i], x, messages[i] if messages else None, tools[i] if tools else None)
            for i, x in zip(batch, shown, strict=True)
        ]
        codes = languages.detect([texts[i] for i in batch]) if spoken else ["und"] * len(read)
        out += _decide(read, codes, explain)
    return out


def of_rows(
    texts: Sequence[str], messages: Sequence[str], tools: Sequence[str | None], *, processes: int | None = None
) -> tuple[list[Label], NDArray[np.float64]]:
    """Return labels (`label`, no languages, no reasons) and `masses` of rows whose messages and tools are JSON.

    Each text is read once for both, in worker processes where there are many.
    """
    n = 1 if len(texts) < POOL_TEXTS else processes or os.cpu_count() or 1
    batches = ((texts[k : k + 512], messages[k : k + 512], tools[k : k + 512]) for k in range(0, len(texts), 512))
    found = list(workers.in_order(_of_batch, batches, n))
    if not found:
        return [], masses([])
    return [x for labels, _ in found for x in labels], np.concatenate([P for _, P in found])


def _of_batch(
    texts: Sequence[str], messages: Sequence[str], tools: Sequence[str | None]
) -> tuple[list[Label], NDArray[np.float64]]:
    called = [json.loads(t) if t else None for t in tools]
    said = label(texts, messages=[json.loads(m) for m in messages], tools=called, spoken=False, explain=False)
    return said, masses(texts)


POOL_TEXTS = 2000  # with fewer, starting workers takes longer


# ---- what is read off a text


_AT = {s.name: i for i, s in enumerate(SIGNALS)}
_STEPS = 16  # signal values are whole sixteenths: integer sums are the same in any batch and on any machine
_TOKEN = re.compile(
    r"[a-z]+(?:['’_.-][a-z]+)*[+#]*|\d+(?:[.,]\d+)*|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_a-z]+"
)
_PHRASES: dict[str, list[int]] = {}
for _i, _signal in enumerate(SIGNALS):
    for _phrase in filter(None, (p.strip() for p in _signal.words.split(","))):
        _PHRASES.setdefault(" ".join(_TOKEN.findall(_phrase)), []).append(_i)
_OPENERS = frozenset(p.split(" ", 1)[0] for p in _PHRASES if " " in p)


_PATTERNS = [(s.pattern, s.where) for s in SIGNALS] + [(p, "all") for p in PROGRAMMING.values()]


class _Search(NamedTuple):
    target: int  # a signal, or len(SIGNALS) + a programming language
    place: str
    needs: list[tuple[str, ...]]  # a match holds one string of each
    pattern: str  # compiled when first tried: most are not, and all of them take a quarter of a second


def searches() -> list[_Search]:
    """Return what to search for, read from the patterns of all signals and programming languages: 0.06 s of parsing."""
    out = []
    for i, (pattern, place) in enumerate(_PATTERNS):
        for part in alternatives(pattern) if pattern else ():
            # A place that is put together of two holds a newline that the text need not hold.
            needs = [n for n in needed(part) if place == "all" or "\n" not in "".join(n)]
            out.append(_Search(i, place, needs, part))
    return out


def written() -> str:
    """Return the searches as JSON, under a hash of the patterns that they are of: what is in SEARCHES."""
    return json.dumps({"of": _of_patterns(), "searches": searches()}, ensure_ascii=False, separators=(",", ":")) + "\n"


def _of_patterns() -> str:
    return hashlib.sha256(repr(_PATTERNS).encode()).hexdigest()


def _stored() -> list[_Search]:
    """Return the searches, from the file where it is of these patterns: it only saves time."""
    kept = json.loads(SEARCHES.read_bytes()) if SEARCHES.exists() else {}
    if kept.get("of") != _of_patterns():
        return searches()
    return [_Search(target, place, [tuple(n) for n in needs], part) for target, place, needs, part in kept["searches"]]


_SEARCHES = _stored()
_STRINGS = sorted({string for search in _SEARCHES for strings in search.needs for string in strings})
_ALWAYS = [k for k, search in enumerate(_SEARCHES) if not search.needs]
_BY_STRING: dict[str, list[int]] = {}  # the searches whose first, rarest need it is
for _k, _search in enumerate(_SEARCHES):
    for _string in _search.needs[0] if _search.needs else ():
        _BY_STRING.setdefault(_string, []).append(_k)
_LANGUAGES = list(PROGRAMMING)
_ASKS_AMOUNT = re.compile(
    r"\b(?:how (?:much|many|long|far|old|high|fast)|what (?:is|was|will be|would be|percent|fraction)|find|calculate"
    r"|in how|wie (?:viele?|lange|hoch|groß|weit|schnell)|mit welcher|welcher anteil|combien|quel(?:le)? est"
    r"|cuánt[oa]s?|quant[oie]s?|quanta|hoeveel|ile|hur (?:många|mycket|lång)|сколько|каков[аы]?|kaç|ne kadar|berapa"
    r"|bao nhiêu)\b"
    r"|多少|几|求|いくら|何(?:人|個|時間|円|本|分|通り)|몇|얼마|कितन|كم "
)
_QUESTION = re.compile(r"(?:who|when|where|what|which|how|in what|is|are|did|does|was)\b")
_REQUEST = re.compile(
    r"write|create|implement|how|why|what|can|could|given|explain|you are|please|i want|help|develop|convert|def "
    r"|complete|add|find|show|list|tell|make|go |set |open|hi|hey"
)
_NO_FACT_START = re.compile(
    r"what if|is the following|if |how can|how to|how would|how might|why "
    r"|(?:wie|was) (?:kann|soll|muss|mache|schaffe|finde) (?:ich|man|wir)|comment (?:puis-je|faire|dois-je|peut-on|je )"
    r"|¿?(?:cómo|qué) (?:puedo|debo|hago|se puede)|como (?:posso|devo|faço)|come (?:posso|faccio|devo|si fa)"
    r"|hoe (?:kan|moet) ik|как (?:мне|лучше|можно)|jak (?:mogę|mam)|hur (?:ska|kan) (?:jag|man)|nasıl|bagaimana"
    r"|làm (?:sao|thế nào)|どうすれば|どうしたら|怎么|如何|怎样|.{2,40}(?:怎么办|怎么做)|어떻게|كيف|कैसे"
)
_NO_FACT_WORD = re.compile(
    r"\b(?:you|your|i|my|plausible|sarcastic|sentence|following|subreddit|repo|machine|dashboard|commits|orders|customers?"
    r"|rating|cart|travel|walking)\b"
)
_NUMBER_WORD = re.compile(
    r"\b(?:one|two|three|four|five|six|seven|eight|nine|ten|twenty|half|twice|dozen|third|double|triple)\b"
)
_IDENTIFIER = re.compile(r"\w_\w|\w\(|`|\w\.\w+\.\w|>>>")
_OPTIONS = re.compile(r"\nb[.):] |\n *\(b\)|options:|\nب\) |\n(?:②|2\)) ")
_ASKS = ("?", "？", "؟", "ですか。", "ますか。", "でしょうか。")
_ASK_LABEL = re.compile(
    r"(?:question|q|answer|fragen?|pregunta|pergunta|domanda|vraag|pytanie|fråga|вопрос|soru|pertanyaan|câu hỏi"
    r"|質問|問い?|问题|질문|प्रश्न|السؤال|سؤال)\b ?\d* ?[:：]|(?:question|answer)"
)
_WANTS = re.compile(
    r"\b(?:how (?:would|do|can|should) (?:you|i|we)|tell me|rewrite|what is going on|what do i|why (?:is|does|do)"
    r"|explain|please|show (?:me|how)|i want)\b"
)
_PLACEHOLDER = re.compile(r"\{\{.*\}\}|<\|.*\|>|\[\w+\]")
_UNSPEAKABLE = re.compile(
    r"(?=[a-z]+$)(?:.*[bcdfghjklmnpqrstvwxz]{5}|[bcdfghjklmnpqrstvwxz]{3,}$|.*(?:kfj|qw(?!ert)|zxc|xmc|vbn))"
)
_SENTENCE = re.compile(r"[.!?。！？](?:\s|$)|\n\n")
_NAMES = re.compile(r"(?<=[a-z,] )[A-Z][a-z]+")


class _Reading(NamedTuple):
    signals: list[int]  # in sixteenths, one per SIGNALS
    hashed: dict[int, str]  # bucket -> the word or pair that fell there
    tags: set[str]


def _read(text: str, of_text: _OfText, messages: Sequence[Message] | None, tools: Any) -> _Reading:
    shown, hashed, named = of_text
    values = list(shown)
    for name, value in _turns(messages or ()).items():
        values[_AT[name]] = round(_STEPS * value)
    tags = {*named, *_tags(text, values, messages, tools)}
    if tools:
        values[_AT["tools"]] = _STEPS
    if len(text) > HEAD + TAIL:
        values[_AT["very_long"]] = _STEPS
    return _Reading(values, hashed, tags)


_OfText = tuple[tuple[int, ...], dict[int, str], frozenset[str]]  # signal values, hashed words, programming languages
_KEPT: dict[str, _OfText] = {}  # a score asks for the label and for the masses of the same few hundred texts
MOST_KEPT = 1024


def _read_texts(texts: Sequence[str]) -> list[_OfText]:
    """Return what each text alone shows."""
    out = {text: _KEPT[text] for text in texts if text in _KEPT}
    new = [text for text in dict.fromkeys(texts) if text not in out]
    cuts = [t if len(t) <= HEAD + TAIL else f"{t[:HEAD]}\n{t[-TAIL:]}" for t in new]
    lowers = [cut.lower() for cut in cuts]
    read = [_read_text(*each) for each in zip(cuts, lowers, _strings_in(lowers), strict=True)]
    out |= dict(zip(new, read, strict=True))
    if len(_KEPT) + len(new) > MOST_KEPT:
        _KEPT.clear()
    _KEPT.update(zip(new[-MOST_KEPT:], read[-MOST_KEPT:], strict=True))
    return [out[text] for text in texts]


def _read_text(cut: str, lower: str, strings: set[str]) -> _OfText:
    stripped = lower.strip()
    found = _found(_places(lower), strings)
    values = [_STEPS if i in found else 0 for i in range(len(SIGNALS))]
    tokens = _TOKEN.findall(lower)
    hits = _phrase_hits(tokens)
    for i, n in hits.items():
        # Half strength for one phrase, full for four; less in a long text, which holds every word sooner or later.
        values[i] = round(_STEPS * min(1.0, math.sqrt(n) / 2) * min(1.0, math.sqrt(80 / len(tokens))))
    for name, value in _shapes(cut, stripped, tokens, hits.get(_AT["complaint"], 0)).items():
        values[_AT[name]] = round(_STEPS * value)
    named = frozenset(name for i, name in enumerate(_LANGUAGES, start=len(SIGNALS)) if i in found)
    values[_AT["language_named"]] = _STEPS * bool(named)
    return tuple(values), _hash(tokens), named


def _places(lower: str) -> dict[str, str]:
    """Return the parts of the lower-cased text by the names that `Signal.where` uses."""
    stripped = lower.strip()
    return {
        "all": lower,
        "first": stripped[:120],
        "last": stripped[-300:],
        "edges": stripped if len(stripped) <= 800 else f"{stripped[:400]}\n{stripped[-400:]}",
        "ends": stripped if len(stripped) <= 300 else f"{stripped[:150]}\n{stripped[-150:]}",
    }


def _strings_in(texts: Sequence[str]) -> list[set[str]]:
    """Return which strings that some search needs each text holds; all are looked for in one pass (Aho-Corasick)."""
    import polars as pl

    if not texts:
        return []
    # A lone surrogate is in none of the strings, and polars takes none.
    series = pl.Series([t.encode("utf-8", "replace").decode() for t in texts], dtype=pl.String)
    return [set(found) for found in series.str.extract_many(_STRINGS, overlapping=True).list.unique().to_list()]


def _found(places: dict[str, str], strings: set[str]) -> set[int]:
    """Return the targets whose patterns occur; `strings` are those that the text holds.

    Some 1,000 patterns and few matches: what a pattern needs and the text lacks says which are not worth a try.
    """
    tries = list(_ALWAYS)
    for string in strings:
        tries += _BY_STRING.get(string, ())
    found: set[int] = set()
    for k in dict.fromkeys(tries):
        target, place, needs, pattern = _SEARCHES[k]
        if target in found or any(strings.isdisjoint(need) for need in needs):
            continue
        text = places[place]
        if place != "all" and needs and not any(string in text for string in needs[0]):
            continue
        if _compiled(pattern).search(text):
            found.add(target)
    return found


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.M)


def _phrase_hits(tokens: list[str]) -> dict[int, int]:
    """Return signal -> how many different phrases of it occur."""
    seen: set[str] = set()
    for j, token in enumerate(tokens):
        seen.add(token)
        if token in _OPENERS:
            seen.add(" ".join(tokens[j : j + 2]))
            seen.add(" ".join(tokens[j : j + 3]))
    hits: dict[int, int] = {}
    for phrase in seen & _PHRASES.keys():
        for i in _PHRASES[phrase]:
            hits[i] = hits.get(i, 0) + 1
    return hits


def _shapes(cut: str, stripped: str, tokens: list[str], complaints: int) -> dict[str, float]:
    """Return the signals that are shapes and not words, each 0..1; `stripped` is the lower-cased `cut`."""
    n = len(tokens)
    digits = sum(t[0].isdigit() for t in tokens)
    sentences = len(_SENTENCE.findall(stripped)) or 1
    paragraphs = [p for p in stripped.split("\n") if p.strip()] or [""]
    first, last = paragraphs[0], paragraphs[-1]
    fenced = "```" in stripped
    code = fenced or ";" in stripped
    options = _OPTIONS.search(stripped) is not None
    # As typed into a search box: no capitals, no stops, no verb in front.
    bare = n >= 4 and stripped.isascii() and not re.search(r"[A-Z.!:,;]", cut) and not _REQUEST.match(stripped)
    question = bare or stripped.endswith(_ASKS) or _QUESTION.match(stripped) is not None
    asks_last = last.endswith(_ASKS) or _ASK_LABEL.match(last) is not None
    passage = len(stripped) - len(last if asks_last else first)  # characters that are not the question
    told = sentences >= 2 or "%" in stripped or "if " in stripped
    head = stripped[:600]
    foreign = 0 if head.isascii() else sum(c > "\u024f" for c in head)
    return {
        "short_question": float(
            question and 3 <= n <= 22 and sentences == len(paragraphs) == 1 and not code and digits < 2
            and not (_NO_FACT_START.match(stripped) or _NO_FACT_WORD.search(stripped[:250]))
        ),
        "issue_like": float(
            complaints >= 3 and n > 30 and not (fenced and _WANTS.search(f"{stripped[:150]} {stripped[-150:]}"))
            and not _REQUEST.match(stripped) and _IDENTIFIER.search(stripped) is not None
        ),
        "task_and_input": float(
            len(paragraphs) > 1 and 4 <= len(first.split()) <= 60 and first.endswith((".", ":"))
            and n < 220 and digits < 6 and not asks_last and not code and not options
        ),
        "story_sum": float(
            told and n < 160 and not code and "_" not in stripped
            and digits + len(set(_NUMBER_WORD.findall(stripped))) >= 2
            and _ASKS_AMOUNT.search(stripped[-400:]) is not None
        ),
        "long_then_question": float(
            passage > 500 and (asks_last or first.endswith(_ASKS)) and not fenced and not options
        ),
        "text_then_question": float(
            150 < passage <= 500 and (asks_last or first.endswith(_ASKS)) and len(paragraphs) > 1 and digits < 0.12 * n
            and not code and not options
        ),
        "noise": float(_is_noise(stripped, tokens, digits)),
        "tiny": float(n <= 4),
        "short": float(4 < n <= 25),
        "medium": float(25 < n <= 90),
        "long": float(n > 250),
        "no_capitals": float(n > 2 and stripped == cut.strip()),
        "numbers": min(1.0, digits / (0.15 * n + 1)),
        "names": min(1.0, len(_NAMES.findall(cut)) / (0.15 * n + 1)),
        "blank_lines": min(1.0, cut.count("\n\n") / 4),
        "foreign": min(1.0, foreign / (0.4 * len(head) + 1)),
    }  # fmt: skip


def _is_noise(stripped: str, tokens: list[str], digits: int) -> bool:
    """Return whether nobody could read a request: no letters, keyboard rows, one word over and over, a hash, a stub."""
    n = len(tokens)
    if sum(map(str.isalpha, stripped[:200])) < 3:
        return digits < 2 or not re.search(r"\d[\s()]*[-+*/=^<>]", stripped)  # a sum may do without letters
    sign = any(c in stripped for c in "_(/")
    unspeakable = 0 if sign else sum(_UNSPEAKABLE.match(t) is not None for t in tokens[:60])
    return (
        (unspeakable > 0 and unspeakable >= 0.4 * min(n, 60))
        or (3 <= n < 40 and len(set(tokens)) <= 0.34 * n)
        or (len(stripped) > 30 and len(set(stripped)) < 8)
        or (len(stripped) > 24 and digits >= 2 and " " not in stripped and stripped.isascii() and not sign)
        or _PLACEHOLDER.fullmatch(stripped) is not None
    )


_ACTED = re.compile(
    r"<tool_call>|<functioncall>|^Action(?: Input)?:(?! *finish)|^```bash|^DISCUSSION|<<<<<<< SEARCH|\"arguments\":",
    re.M,
)
_OBSERVED = ("Observation:", "OBSERVATION", "<output>", "<returncode>", "(Open file")  # results that come as user turns


def _turns(messages: Sequence[Message]) -> dict[str, float]:
    """Return the signals that the later turns give: an opening alone does not show whether anybody acted."""
    later = [m for m in messages if m["role"] in ("assistant", "tool")]
    said = "\n".join(m["content"][:600] for m in later[:6])
    acted = any(m.get("tool_calls") for m in later) or _ACTED.search(said) is not None
    only_finished = not acted and re.search(r"^Action: ?finish", said, re.M) is not None
    shown = any(m["role"] == "user" and m["content"].startswith(_OBSERVED) for m in messages[1:8])
    return {
        "acted": float(acted),
        "finish_only": float(only_finished),
        "observed": float(any(m["role"] == "tool" for m in messages) or (shown and not only_finished)),
        "thought_first": float(said.startswith("Thought:")),
        "several_users": float(sum(m["role"] == "user" for m in messages) > 1),
        "system_turn": float(any(m["role"] == "system" and len(m["content"]) > 80 for m in messages[:1])),
    }


def _hash(tokens: list[str]) -> dict[int, str]:
    """Return bucket -> term: words, neighbouring pairs, and the first words; of a number only its places count."""
    words = [t if not t[0].isdigit() else "0" * min(len(t), 4) for t in tokens[:WORDS_READ]]
    terms = words + [f"{a} {b}" for a, b in pairwise(words)] + [f"^{w}" for w in words[:2]]
    if len(words) > 2:
        terms.append("^" + " ".join(words[:3]))
    return {zlib.crc32(t.encode("utf-8", "surrogatepass")) & (BUCKETS - 1): t for t in terms}


def _tags(text: str, values: list[int], messages: Sequence[Message] | None, tools: Any) -> set[str]:
    tags = set()
    if any(values[_AT[s]] for s in ("fence", "signature", "c_like", "imports", "sql", "diff", "doctest")):
        tags.add("code")
    if tools or values[_AT["tool_schema"]] or values[_AT["acted"]]:
        tags.add("tools")
    if sum(m["role"] == "user" for m in messages or ()) > 1:
        tags.add("multi-turn")
    if len(text) >= LONG or sum(len(m["content"]) for m in messages or ()) >= 3 * LONG:
        tags.add("long")
    return tags


# ---- what is decided from it


class _Model(NamedTuple):
    signals: NDArray[np.int64]  # (n_signals, n_domains), in 1/256
    bias: NDArray[np.int64]  # (n_domains,), in 1/256
    words: NDArray[np.int8]  # (BUCKETS, n_domains)
    word_step: float
    temperature: float
    sure_from: float  # probability below which a label is `unsure`


def rules() -> NDArray[np.float64]:
    """Return the written weights of SIGNALS as a matrix, shape (n_signals, n_domains), log-odds."""
    out = np.zeros((len(SIGNALS), len(DOMAINS)))
    for i, signal in enumerate(SIGNALS):
        for domain, weight in signal.weights.items():
            out[i, DOMAINS.index(domain)] = weight
    return out


@functools.lru_cache(maxsize=1)
def _model() -> _Model:
    if not MODEL.exists():  # the rules alone: what training starts from
        fixed = np.rint(rules() * 256).astype(np.int64)
        return _Model(
            fixed, np.zeros(len(DOMAINS), np.int64), np.zeros((BUCKETS, len(DOMAINS)), np.int8), 0.0, 1.0, 0.5
        )
    with np.load(MODEL, allow_pickle=False) as z:
        return _Model(
            z["signals"].astype(np.int64), z["bias"].astype(np.int64), z["words"],
            float(z["word_step"]), float(z["temperature"]), float(z["sure_from"]),
        )  # fmt: skip


def masses(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return P(domain | text) by the text alone, (n, len(DOMAINS)) rows summing to one; the same in any batch."""
    parts = []
    for k in range(0, len(texts), 512):
        batch = texts[k : k + 512]
        parts.append(_posterior([_read(t, x, None, None) for t, x in zip(batch, _read_texts(batch), strict=True)]))
    return np.concatenate(parts) if parts else np.zeros((0, len(DOMAINS)))


def identity() -> str:
    """Return what tells this labeller from another version of it: the hash of its rules and trained weights."""
    rules_ = repr([(s.name, s.pattern, s.words, sorted(s.weights.items())) for s in SIGNALS])
    return hashlib.sha256(rules_.encode() + (MODEL.read_bytes() if MODEL.exists() else b"")).hexdigest()[:16]


def _posterior(read: list[_Reading]) -> NDArray[np.float64]:
    model = _model()
    S = np.array([r.signals for r in read], dtype=np.int64)
    logits = (S @ model.signals / _STEPS + model.bias) / 256
    sizes = np.array([len(r.hashed) for r in read], dtype=np.int64)
    some = np.flatnonzero(sizes)
    if len(some):  # whole numbers: the sums of all texts at once are those of each
        terms = np.fromiter(chain.from_iterable(r.hashed for r in read), np.int64, int(sizes.sum()))
        totals = np.add.reduceat(model.words[terms], (np.cumsum(sizes) - sizes)[some], axis=0, dtype=np.int64)
        logits[some] += totals * (model.word_step / np.sqrt(sizes[some]))[:, None]
    logits = np.round(logits / model.temperature, 6)
    P = np.exp(logits - logits.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)
    return np.asarray(P, dtype=np.float64)


def _decide(read: list[_Reading], codes: list[str], explain: bool) -> list[Label]:
    model = _model()
    P = _posterior(read)
    best = np.round(P, 9).argmax(axis=1)
    out = []
    for i, (r, code) in enumerate(zip(read, codes, strict=True)):
        p = round(float(P[i, best[i]]), 4)
        tags = r.tags if code in ("en", "und") else r.tags | {f"lang:{code}"}
        why = _why(r, int(best[i]), model) if explain else ""
        out.append(Label(DOMAINS[best[i]], p, p < model.sure_from, tuple(sorted(tags)), why))
    return out


def _why(r: _Reading, domain: int, model: _Model) -> str:
    """Say what spoke for the domain: contributions above the mean of all domains, loudest first."""
    said: list[tuple[float, str]] = []
    for i in np.flatnonzero(r.signals).tolist():
        above = float(model.signals[i, domain] - model.signals[i].mean()) / 256
        said.append((above * r.signals[i] / _STEPS, SIGNALS[i].says))
    if r.hashed and model.word_step:
        W = model.words[list(r.hashed)].astype(np.int64)  # (n_terms, n_domains)
        above_mean = (W[:, domain] - W.mean(axis=1)) * (model.word_step / math.sqrt(len(r.hashed)))
        terms = list(r.hashed.values())
        said += [
            (float(above_mean[j]), f"the words “{terms[j].lstrip('^')}”") for j in np.flatnonzero(above_mean > 0.1)
        ]
    loud = sorted(((round(v, 6), s) for v, s in said if v > 0.1), key=lambda x: (-x[0], x[1]))[:3]
    return "; ".join(s for _, s in loud) or "nothing in particular"
