"""Which prompts hold a key, a token, an e-mail address or a phone number: what should not be published by accident.

    "Mail ada.k@web.de the log" -> ("e-mail address",)          "write to jane@example.com" -> ()

Keys are found by detect-secrets' patterns of known services (no entropy, which flags prose) and by a few of our own
for services that it lacks; phone numbers are judged by Google's numbering plans (phonenumbers). What manuals use as
examples is no personal data: example.com and other reserved or made-up domains, git@ and other role addresses, 555
numbers, keys with EXAMPLE in them. Only the kind is returned and never the value, so that no log or card repeats it.

Not complete, and no claim to be: names, postal addresses, national phone numbers written without a country code
outside North America, passwords in prose and keys of other services pass.

Cost: about 7 MB of text a second on one core, 10,000 prompts of 600 characters in one second.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from promptkit.conversation import Message
from promptkit.domain_signals import needed

EMAIL, PHONE, KEY = "e-mail address", "phone number", "key or token"

# Plugins of detect-secrets that name a service by the form of its keys. Left out: entropy, keywords, IP addresses, and
# services whose keys are known only by the variable's name (IBM, SoftLayer, Cloudant, Artifactory): slow and noisy;
# OpenAI, npm, logins in URLs and web tokens, whose patterns there take quadratic time, are among our own.
_PLUGINS = {
    "aws": "AWSKeyDetector", "azure_storage_key": "AzureStorageKeyDetector",
    "discord": "DiscordBotTokenDetector", "github_token": "GitHubTokenDetector", "gitlab_token": "GitLabTokenDetector",
    "mailchimp": "MailchimpDetector", "pypi_token": "PypiTokenDetector", "sendgrid": "SendGridDetector",
    "slack": "SlackDetector",
    "square_oauth": "SquareOAuthDetector", "stripe": "StripeDetector", "telegram_token": "TelegramBotTokenDetector",
    "twilio": "TwilioKeyDetector",
}  # fmt: skip
_OWN_KEYS = [
    # The literal comes first and the boundary is looked for behind it: a leading \\b costs ten times as much.
    re.compile(p)
    for p in (
        r"sk-(?<!\wsk-)(?:(?:proj|ant|svcacct|admin|or)-[A-Za-z0-9_-]{24,}|[A-Za-z0-9]{32,}\b)",  # OpenAI, Anthropic
        r"npm_(?<!\wnpm_)[A-Za-z0-9]{36}\b",
        r"hf_(?<!\whf_)[A-Za-z0-9]{30,}\b",  # Hugging Face
        r"github_pat_[A-Za-z0-9_]{50,}\b",
        r"AIza(?<!\wAIza)[A-Za-z0-9_-]{35}\b",  # Google
        r"glpat-[A-Za-z0-9_-]{20,}",
        # A header alone is quoted in many programs; a key has a body.
        r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----[\s\\nr\"'+]*(?:[\w-]+: [^\n]*\n+)*[A-Za-z0-9+/=\s\\]{60,}",
    )
]

_LOGIN = re.compile(r"://[^\s:/?#\[\]@'\"<>]{0,64}:([^\s:/?#\[\]@'\"<>]{1,128})@([\w.-]{0,100})")
_WEB_TOKEN = re.compile(r"eyJ(?<![\w-]eyJ)[\w-]{10,4000}=*\.[\w-]{10,4000}=*(?:\.[\w-]{10,4000})?")

_EMAIL = re.compile(
    r"(?<![\w.+%/@:-])([A-Za-z0-9][A-Za-z0-9._%+-]{0,63})@((?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+"
    r"[A-Za-z]{2,24})\b(?![@(\[]|[:/][\w~/.])"  # not host:path of ssh, not a product of matrices
)
# National numbers only in the forms that North America writes; with blanks alone they are too like tables.
# The first character comes first and is looked behind afterwards, which is twice as fast.
_PHONE = re.compile(
    r"[+(\d](?<![\w.+$€£,=/\-].)(?:(?<=\+)\d[\d ().\-]{6,18}\d|(?<=\()\d{3}\) ?\d{3}[-. ]\d{4}"
    r"|(?<=\d)\d{2}-\d{3}-\d{4}|(?<=\d)\d{2}\.\d{3}\.\d{4})(?![\w%-]|\.\d)"
)
# RFC 2606 and 6761, and names that tutorials make up.
_NOBODYS_DOMAIN = re.compile(
    r"(?:.*\.)?(?:example|sample|test|testing|invalid|localhost|local|internal|lan|e?mail|domain|(?:my|your|some|the)[a-z-]*"
    r"|company|corp|acme|foo|bar|baz|foobar|abc|xyz|x|y|a|b|dummy|fake|server|host|website|site|org|university|school)"
    r"(?:\.[a-z]{2,6}){1,2}|.*\.(?:example|test|invalid|localhost|local|internal|lan)"
)
_ROLE = re.compile(
    r"(?:git|hg|svn|ssh|root|admin|administrator|postmaster|webmaster|hostmaster|abuse|no-?reply|do-?not-?reply|info|support"
    r"|help|contact|sales|hello|security|press|media|jobs|careers|legal|privacy|billing|team|office|service|feedback|bot"
    r"|user|username|user-?name|name|me|you|your\.?name|my\.?name|someone|somebody|nobody|anyone|example|test|tester"
    r"|foo|bar|baz|john\.?doe|jane\.?doe|ubuntu|ec2-user|debian|deploy|www|mail|email|your\.?email|my\.?email)\d{0,4}",
)
# Any two letters are a country; of longer ends those that people have addresses under. Else `x@y.transpose` is one.
_END = re.compile(
    r"[a-z]{2}|com|org|net|edu|gov|mil|int|info|biz|name|pro|dev|app|cloud|tech|xyz|online|site|store|blog|mobi|email"
    r"|page|team|work|live|news|agency|software|systems|solutions|group|company|digital|media|design|studio|academy"
    r"|institute|university|health|network|services|consulting|global|world|today|life|space|website"
)
_DUMMY = re.compile(
    r"example|sample|dummy|fake|test|placeholder|changeme|change_me|your|insert|redacted|x{4}|\*{3}|\.{3}|<|\$|\{|12345|"
    r"abcdef|password|passwd|secret|deadbeef",
    re.IGNORECASE,
)
_PRIVATE_KINDS = ("FIXED_LINE", "MOBILE", "FIXED_LINE_OR_MOBILE", "PERSONAL_NUMBER", "VOIP", "PAGER")


def flags(requests: Sequence[Iterable[str]], seen: dict[bytes, tuple[str, ...]] | None = None) -> list[tuple[str, ...]]:
    """Return, for each request (its texts), the kinds of secret or personal data that it seems to hold; mostly ().

    A text that comes again (a system prompt, the growing history of an agent) is read once; `seen`, by the hashes of
    texts, carries that on to further calls.

    >>> flags([["Sort a list."], ["Be brief.", "call +44 7911 842396"], ["mail jane@example.com"]])
    [(), ('phone number',), ()]
    """
    seen = {} if seen is None else seen
    out = []
    for texts in requests:
        found: set[str] = set()
        for text in texts:
            key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if key not in seen:
                seen[key] = kinds(text)
            found.update(seen[key])
        out.append(tuple(sorted(found)))
    return out


def texts_of(messages: Sequence[Message], tools: Any = None) -> list[str]:
    """Return all texts of a request that somebody could read: contents, calls, tool declarations."""
    texts = [json.dumps(tools, ensure_ascii=False)] if tools else []
    for m in messages:
        texts.append(m["content"])
        texts += [str(c.get("function", {}).get("arguments") or "") for c in m.get("tool_calls") or ()]
    return texts


def kinds(text: str) -> tuple[str, ...]:
    """Return the kinds that one text holds, sorted."""
    looks: tuple[tuple[str, Callable[[str], bool]], ...] = ((EMAIL, _email), (KEY, _key), (PHONE, _phone))
    return tuple(name for name, holds in looks if holds(text))


def _email(text: str) -> bool:
    if "@" not in text:
        return False
    for m in _EMAIL.finditer(text):
        local, domain = m[1].lower(), m[2].lower()
        end = domain.rpartition(".")[2]
        if _END.fullmatch(end) and not _NOBODYS_DOMAIN.fullmatch(domain) and not _ROLE.fullmatch(local):
            return True
    return False


def _phone(text: str) -> bool:
    import phonenumbers

    private = {getattr(phonenumbers.PhoneNumberType, k) for k in _PRIVATE_KINDS}
    for m in _PHONE.finditer(text):
        try:
            number = phonenumbers.parse(m[0], "US")
        except phonenumbers.NumberParseException:
            continue
        digits = str(number.national_number)
        fictional = number.country_code == 1 and digits[3:6] == "555"
        if fictional or _made_up(digits) or not phonenumbers.is_valid_number(number):
            continue
        if phonenumbers.number_type(number) in private:
            return True
    return False


def _made_up(digits: str) -> bool:
    """Say whether somebody typed along the keyboard: 1234567, 9876543, 9999999."""
    runs = ("01234567890123", "98765432109876")
    return len(set(digits)) < 4 or any(digits[i : i + 6] in run for run in runs for i in range(len(digits) - 5))


def _key(text: str) -> bool:
    # A key is random: few letters, or a word for "put yours here", make an example.
    return any(len(set(value[-20:])) >= 5 and not _DUMMY.search(value) for value in _key_values(text))


def _key_values(text: str) -> Iterator[str]:
    lower = text.lower() if text.isascii() else None  # beside ASCII, letters of either case are more than two
    for needs, any_case, pattern in _keys():
        where = lower if any_case else text
        if where is not None and not any(string in where for string in needs):
            continue
        for m in pattern.finditer(text):
            yield max((g for g in m.groups() if g and len(g) >= 16), key=len, default=m[0])
    yield from (m[1] for m in _LOGIN.finditer(text) if not _local_login(m[1], m[2].lower()))
    yield from (_claims(m[0]) for m in _WEB_TOKEN.finditer(text))


def _local_login(password: str, host: str) -> bool:
    """Say whether a login in a URL is one of a manual or of somebody's own machine (user:pass@localhost)."""
    short = len(password) < 6 or password.lower() in ("postgres", "foobar")
    return short or "." not in host or host.startswith("127.") or bool(_NOBODYS_DOMAIN.fullmatch(host))


def _claims(token: str) -> str:
    """Return a token that holds JSON as it is, else "": the one of every tutorial is John Doe's, 1234567890."""
    try:
        head, body = (base64.urlsafe_b64decode(p + "=" * (-len(p) % 4)) for p in token.split(".")[:2])
        json.loads(head)
        said = body.decode("utf-8", "replace").lower()
    except ValueError:
        return ""
    return "" if "john doe" in said or "1234567890" in said else token


@lru_cache(maxsize=1)
def _keys() -> tuple[tuple[tuple[str, ...], bool, re.Pattern[str]], ...]:
    """Return strings of which every match holds one, whether in any case (then they are lower), and the pattern itself.

    Looking for a string costs a tenth of looking for a pattern.
    """
    plugins = [getattr(import_module(f"detect_secrets.plugins.{name}"), cls) for name, cls in _PLUGINS.items()]
    out = []
    for pattern in (*_OWN_KEYS, *(p for plugin in plugins for p in plugin.denylist)):
        needs = next(iter(needed(pattern.pattern)), ("",))
        any_case = bool(pattern.flags & re.IGNORECASE)
        out.append((tuple(s.lower() if any_case else s for s in needs), any_case, pattern))
    return tuple(out)
