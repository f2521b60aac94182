"""The natural language of a text: `detect(["Wie spät ist es?"])` gives `["de"]`.

Texts come in as they are; ISO 639-1 codes come out, or "und" where nobody could tell. The model is that of py3langid
(140 languages, inside its wheel, no network), asked about the prose alone: code, URLs, paths, formulas and markup are
cut away first, because a Python traceback is not Icelandic. Three readings to know of:

- A text that is mostly code is the language of its prose; with no prose left it is "und".
- Short text is where such models guess. Plain ASCII text that holds English function words is "en" without asking the
  model; a Latin text under `SURE_LETTERS` letters that neither this rule nor a confident model can place is "und".
- Varieties are folded into the code that people look for: Egyptian and Moroccan Arabic to "ar", Wu and Cantonese to
  "zh", Nynorsk to "no"; Croatian and Bosnian stay apart. A language without an ISO 639-1 code is "und".

Cost: about 0.1 ms per text, and 0.6 s once to load the model. Only the first `HEAD` characters are read.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

HEAD = 1000  # characters of prose that are read: a language shows in far fewer
RAW_HEAD = 2400  # characters searched for that prose, since code may stand in front of it
SURE_LETTERS = 24  # Latin letters below which a hesitant model is not believed
MIN_CONFIDENCE = 0.30  # of the model, for Latin text shorter than that; above it at most 5 % of 2-5 word openings err

_FOLD = {"arz": "ar", "ary": "ar", "wuu": "zh", "yue": "zh", "nn": "no", "uzs": "uz"}

# Function words of English that few other languages share; a longer list would start to claim Dutch and German.
_FUNCTION_WORDS = """
the of and is are was were be been that this these those with from which who what when where why how do does did you
your my we our they it its not have has had can could should would will please write given find make give into about
for an as on by or if then than there their
"""
_ENGLISH = frozenset(_FUNCTION_WORDS.split())
_ALSO_ELSEWHERE = "of is was an as on by or for my we had not if do be it does are will"  # Dutch, French, Polish
_SHARED = frozenset(_ALSO_ELSEWHERE.split())

_FENCED = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.S)
# Every pattern that opens with a run is anchored behind a look-back: a 4,000-letter word must not cost its square.
_NOT_PROSE = re.compile(
    r"https?://\S+|(?<!\S)\S+@\S+\.\w+|<[^<>\n]{1,200}>|`[^`\n]{0,200}`|\$[^$\n]{1,200}\$|\\[A-Za-z]+"
    r"|(?<![\w.-])(?:[\w.-]*/)+[\w.-]+"
)
_CODE_LINE = re.compile(
    r"^(?:[ \t]*(?:>>> |\$ |#include|import \w|from \w[\w.]* import|def \w|class \w+[(:]|return\b|print\(|assert |@\w"
    r"|//|[{}\[\]]|(?:for|if|while|elif|else|try|with)\b[^\n]*:[ \t]*$).*"
    r"|.*(?:[;{]|\):|=>|==|\w\(\w*\))[ \t]*)$",
    re.M,
)
_CODE_TOKEN = re.compile(r"(?<!\w)(?:\w*[_=(){}\[\]<>|\\]\S*|\w+\.\w+(?:\.\w+)*\(?|[A-Za-z]*\d\w*)")
_WORDS = re.compile(r"[^\W\d_]+")


def detect(texts: Sequence[str]) -> list[str]:
    """Return the ISO 639-1 code of each text's prose, or "und"; the same texts give the same codes in any batch.

    >>> detect(["How many moons does Jupiter have?", "木星有多少颗卫星？", "x = [1, 2, 3]"])
    ['en', 'zh', 'und']
    """
    return [_detect_one(t) for t in texts]


def prose(text: str) -> str:
    """Return what is left of the text without code, URLs, paths, formulas and markup; at most `HEAD` characters."""
    head = _without_code(text[:RAW_HEAD])
    if len(text) > RAW_HEAD and len(head) < 2 * SURE_LETTERS:  # tool schemas or a file in front of the request
        head = f"{head} {_without_code(text[RAW_HEAD:][-RAW_HEAD:])}".strip()
    return head[:HEAD]


def _without_code(text: str) -> str:
    for cut, instead in ((_FENCED, "\n"), (_CODE_LINE, ""), (_NOT_PROSE, " "), (_CODE_TOKEN, " ")):
        text = cut.sub(instead, text)
    return " ".join(text.split())


def _detect_one(text: str) -> str:
    if _plainly_english(text[:400]):
        return "en"
    raw, text = text, prose(text)
    words = _WORDS.findall(text)
    letters = sum(map(len, words))
    if letters < 2:
        return "und"
    if text.isascii() or sum(map(str.isascii, text)) > 0.97 * len(text):
        lower = [w.lower() for w in words]
        found = [w for w in lower if w in _ENGLISH]
        own = sum(w not in _SHARED for w in found)
        if own and len(found) >= 0.15 * len(words) and (len(found) > 1 or len(words) <= 5):
            return "en"
    code, confidence = _model()(text)
    code = _FOLD.get(code, code)
    if len(code) != 2:
        return "und"
    latin = sum(ord(c) < 0x250 for w in words for c in w)
    doubtful = letters < SURE_LETTERS or len(text) < 0.3 * min(len(raw), HEAD)  # short, or shreds left over from code
    # Rounded, so that the last bit of a float32 sum cannot decide.
    if latin > letters / 2 and doubtful and round(confidence, 4) < MIN_CONFIDENCE:
        return "und"
    return code


def _plainly_english(head: str) -> bool:
    """Return whether a quarter of the words are English function words and nothing looks like code: most prompts."""
    if not head.isascii() or sum(map(head.count, "{}()=;_<`")) > 0.02 * len(head):
        return False
    words = head.lower().split()
    own = [w for w in words if w in _ENGLISH and w not in _SHARED]
    return len(own) >= 4 and len(own) >= 0.25 * len(words)


@functools.lru_cache(maxsize=1)
def _model() -> Callable[[str], tuple[str, float]]:
    # Our own identifier, not the module's: another user of py3langid may restrict that one's languages.
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    classify: Callable[[str], tuple[str, float]] = identifier.classify
    return classify
