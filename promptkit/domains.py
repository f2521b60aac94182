"""What kind of work a prompt asks for: `label(["Prove that 7 divides 2^(3n) - 1."])` gives domain "math".

In: openings (system turn and first user turn), and where known the whole messages and the tool schemas. Out: one of twelve
domains, a calibrated probability, a flag `unsure`, tags, and a sentence that says why. Definitions, borderline rules and
the mapping to other people's label sets: docs/domains.md.

How: about 110 *signals* (a fence, a diff, "translate ... into", four lettered options, a passage with a question behind it)
are read off the text. Each has written weights below, `SIGNALS`; they are the rules, and for domains that no public source
covers they decide alone. `domains.npz` holds what a logistic regression learned on top of them: corrections to the signals
and int8 weights of hashed words and word pairs. It is trained by benchmarks/train_domains.py with whole sources held out,
since a model that has seen a source recognises the source and not the work.

Given up: meaning. Nothing here knows that "the Treaty of Westphalia" is history; short questions in an unknown style are
where it errs. A long text is judged by its first `HEAD` and last `TAIL` characters.
"""

from __future__ import annotations

import functools
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from promptkit import languages
from promptkit.conversation import Message

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
) -> list[Label]:
    """Return the domain of each text; offline, deterministic, the same in any batch.

    texts : openings; messages, tools : aligned with texts, entries may be None. A row with tools is agentic unless the
    text says otherwise very loudly.

    >>> label(["Translate into French: the bridge is closed."])[0].domain
    'translation'
    """
    for name, given in (("messages", messages), ("tools", tools)):
        if given is not None and len(given) != len(texts):
            raise ValueError(f"label: {len(texts)} texts but {len(given)} {name}; pass one entry per text, or None")
    out: list[Label] = []
    for start in range(0, len(texts), 512):  # batches bound the memory; rows do not see each other
        batch = range(start, min(start + 512, len(texts)))
        read = [_read(texts[i], messages[i] if messages else None, tools[i] if tools else None) for i in batch]
        out += _decide(read, languages.detect([texts[i] for i in batch]))
    return out


# ---- what is read off a text


class Signal(NamedTuple):
    """One observable trait. `weights` (domain -> log-odds) is the written rule."""

    name: str
    says: str  # in words, for `why`
    weights: dict[str, float]
    pattern: str = ""  # regular expression over the cut text, lower-cased unless `cased`
    words: str = ""  # or phrases of one to three words, separated by commas
    cased: bool = False
    where: str = "all"  # all, first (120 characters), last (300), edges (400 of each: where requests stand)


_C, _A, _M, _R, _E, _W = "coding", "agentic", "math", "reasoning", "encyclopedic", "writing"
_H, _T, _S, _G, _I, _O = "chat", "translation", "summarization", "rag", "instruction-following", "other"

SIGNALS: tuple[Signal, ...] = (
    # Code.
    Signal("fence", "fenced code", {_C: 1.0, _A: 0.4}, r"```"),
    Signal("signature", "a function or class definition", {_C: 2.2}, r"^[ \t]*(?:async |export |pub |static |private )?(?:def|class|fn|func|function|fun|sub|struct|interface) +\w+ *[(:<{]"),
    Signal("c_like", "C-like code", {_C: 1.8}, r"#include|\bpublic (?:static|class|void|int)|\bint main|std::|console\.log|system\.out|\bvar \w+ ?=|\bconst \w+ ?=|\blet \w+ ?=|</?(?:div|html|script|body|span)\b|\$\w+ ?=|=> ?\{"),
    Signal("imports", "import statements", {_C: 1.5}, r"^(?:import [\w.]+(?: as \w+)?|from [\w.]+ import .+|using [\w.]+;|require\(.+\);?)$"),
    Signal("doctest", "doctest examples", {_C: 1.4, _A: 0.3}, r"^\s*>>> "),
    Signal("assertion", "assertions", {_C: 1.2}, r"^\s*assert\b|\bassert \w+\("),
    Signal("sql", "SQL", {_C: 1.6}, r"\bselect\b[^.?!]{1,200}\bfrom \w+|create table|insert into|\bsql (?:query|statement)|\bwhere clause"),
    Signal("calls", "calls in the text", {_C: 0.5}, r"\b\w+\([\w, '\"=]*\)"),
    Signal("snake", "identifiers", {_C: 0.5, _A: 0.2}, r"\b[a-z]+_[a-z]+\w*\b"),
    Signal("write_code", "asks for code", {_C: 3.0}, r"\b(?:write|create|implement|develop|design|build|construct|generate|make|provide|give me|code|complete|define|need|produce)\b[^.?!\n]{0,60}\b(?:function|program|(?<!podcast )(?<!video )script(?! about)|code|class|method|algorithm|api|regex|regular expression|query|module|(?:web |mobile |android |ios |iphone )?app|component|website|web page|webpage|macro|decorator|unit tests?|dockerfile|makefile|parser|endpoint|library|data structure|stack|queue|linked list|subroutine|stylesheet|formula in excel)\b", where="edges"),
    Signal("fix_code", "asks to mend or explain code", {_C: 2.2}, r"\b(?:fix|debug|refactor|optimi[sz]e|correct|modify|edit|convert|rewrite|explain|find (?:the )?(?:bug|error)s? in|what does|identify|review|analy[sz]e|improve|port|add (?:comments|type hints|tests))\b[^.?!\n]{0,50}\b(?:code|function|script|program|bug|bugs|snippet|syntax|query|class|method|loop|regex|css|html|sql|python|java|javascript)\b", where="edges"),
    Signal("program_words", "programming words", {_C: 1.6}, words="function, functions, array, arrays, string, strings, integer array, list of integers, variable, variables, loop, loops, recursion, recursive, algorithm, python, java, javascript, typescript, c++, c#, rust, golang, ruby, php, kotlin, swift, html, css, sql, bash, regex, json, xml, api, dataframe, pandas, numpy, compile, compiler, runtime, class, object, method, return, returns, parameter, parameters, argument, input string, output, linked list, binary tree, hash map, dictionary, tuple, database, react, django, flask, node.js, docker, kubernetes, git, linux, unit test, unit tests, time complexity, snippet, program, script, code, null, boolean, int, float, stdin, stdout, byte, thread, async, iterator, matrix, sort, sorted, implement, task_func, self-contained code, codebase, backend, frontend, css class, dom, exception, typeerror, segfault, closure, pointer, bitwise"),
    Signal("contest", "contest form: input, output, limits", {_C: 2.6, _M: -0.5}, r"(?:time|memory) limit|\btest ?cases?\b|sample input|example input|^#* *-*input(?: format)?-*:?$|^#* *constraints:?|standard input|1 ?(?:<=|≤|\\le) ?\w|codeforces|leetcode|stdin"),
    Signal("code_ask_tail", "code at the end", {_C: 0.9}, r"[;{}]\s*$|^ {4}\S.*$(?![\s\S]*\n\S)", where="last"),
    # Agents and tools.
    Signal("tool_schema", "tool schemas", {_A: 4.5}, r"available tools|\"parameters\"\s*:\s*\{|\"type\": ?\"function\"|<tools>|tool_declare|access to the following (?:functions|tools|apis)|function[- ]calling|\btool_calls?\b|<functioncall>|available tool classes|use the (?:provided|available|given|following) (?:tools|functions)|list of (?:tools|functions)"),
    Signal("react", "thought, action, observation", {_A: 3.5}, r"^(?:action|observation|action input|act):|\bthought:|respond with (?:exactly )?one (?:bash )?command|one command|next action|take one action|your (?:next )?action"),
    Signal("shell_agent", "a shell or computer to act in", {_A: 3.5}, r"autonomous|interact[^.\n]{0,40}(?:computer|shell|terminal|environment|browser|database|operating system|file ?system)|command line with|bash (?:tool|commands? to|block)|shell prompt|working directory|execute (?:bash|shell|the) commands?|linux container|you have access to (?:a|the|an) [^.\n]{0,40}(?:shell|terminal|sandbox|computer|browser|repository|repo|filesystem|file system|database|interpreter|environment|machine|notebook)|(?:uploaded|cloned) (?:a|the|into)[^.\n]{0,40}repositor|<pr_description>|<uploaded_files>|<issue_description>|/testbed|/workspace|submit (?:command|your changes)"),
    Signal("issue", "an issue report", {_A: 3.0}, r"^#* ?\**(?:steps? to reproduce|to reproduce|how to reproduce|expected (?:behaviou?r|results?|outcome|output)|actual (?:behaviou?r|results?|outcome)|bug (?:report|summary|description)|describe the bug|reproduction|what happened|environment info|system information|versions?|additional context|proposed (?:fix|solution|change))\b.{0,25}$|^description$|\bregression\b|\bpull request\b|\bi expected\b|github\.com/\S+/issues|github issue|code for reproduction|\bworkaround\b|please resolve|<!--"),
    Signal("complaint", "words of a bug report", {_A: 1.4, _C: -0.3}, words="bug, fails, failing, crash, crashes, incorrect, incorrectly, regression, reproduce, instead of, raises, should be, should not, shouldn't, ignored, inconsistent, doesn't work, does not work, not working, unexpected, unexpectedly, deprecated, deprecation, upgraded, docs, patch, i'm using, workaround, support for, no longer, causes, behavior, behaviour, would be nice, breaks, backwards compatible, misleading, wrong, error message, as of, since version, latest version, traceback, upstream, pr, maintainers, it seems, i think, i get, there is no, it would be, does not"),
    Signal("issue_like", "identifiers and complaints without a request", {_A: 3.0, _C: -0.8}),
    Signal("exercise", "an exercise with headings", {_C: 2.6, _A: -1.5}, r"\A#+ (?:introduction|instructions|description|problem(?: statement)?|task|exercise)$"),
    Signal("traceback", "a stack trace", {_A: 1.2, _C: 1.2}, r"traceback \(most recent|^\s*at [\w.$]+\(|^\s*file \"[^\"]+\", line \d+|\b\w+(?:error|exception): "),
    Signal("diff", "a diff", {_A: 1.0, _C: 1.2}, r"^diff --git|^@@ |^\+\+\+ |^--- a/"),
    Signal("paths", "file paths", {_A: 1.2, _C: 0.3}, r"(?<![\w/:.])(?:~|\.{0,2})/[\w.-]+(?:/[\w.-]+)*|\b[\w-]+/[\w-]+\.(?:py|js|ts|go|rs|java|c|cpp|rb)\b"),
    Signal("os_task", "work on files of a machine", {_A: 2.0, _C: 0.2}, words="home directory, current directory, directory, directories, log file, log files, file named, files with, subdirectories, hidden files, cpu usage, disk space, disk usage, running processes, process, processes, permissions, permission, ubuntu, cron, crontab, systemd, environment variable, file system, hostname, ip address, root user, username, usernames, sudo, chmod, grep, tar"),
    Signal("ui_task", "work in an application", {_A: 1.8}, words="my cart, wish list, wishlist, my order, my orders, my account, customers, repository, repo, repos, commits, commit, merge request, merge requests, milestone, subreddit, upvote, downvote, subscribe, newsletter, open the, click, navigate to, search for, checkout, draft a refund, post a, forum, followers, issues, assign, invite, set my, update my, order number, tracking, add a, delete all, change my, driving time, walk from, drive from, top 1, contributors, reviews, reviewers, product, products, price range, brand, this page, the page, the website, browser, screenshot, login, log in, fill out, dashboard, gitlab"),
    Signal("service_policy", "the policy of a service agent", {_A: 3.0}, r"\bpolicy\b[\s\S]{0,400}\b(?:user|customer|tool)|transfer (?:the user )?to a human|user id|as an? [\w ]{2,30} agent\b|tool call at a time|you are an? (?:[\w-]+ ){0,4}agent\b"),
    Signal("please_do", "asks to look up or do something now", {_A: 1.0, _H: 0.2}, r"\b(?:can|could) you (?:please )?(?:help me )?(?:find|book|fetch|get|check|look up|retrieve|search|convert|calculate|track|schedule|send|order|set|update|tell me the (?:current|latest|weather|price))|\b(?:i need to|i want to|i'd like to|i would like to|help me|please) (?:book|know the current|find out|fetch|retrieve|schedule|cancel|order|transfer|check the|get the|update|track)|\b(?:retrieve|fetch) (?:the|a|all|my|me|\d)|current (?:stock price|weather|exchange rate|price)|right now|latest (?:news|price)", where="edges"),
    Signal("table_task", "questions over tables or a knowledge base", {_A: 2.6}, r"the (?:name|headers?) of this table|knowledge base|sparql|^entities: \[|the headers of|\bin the (?:\w+ )?(?:database|table named)\b"),
    Signal("ui_command", "a command for an application", {_A: 2.4, _I: -0.6}, r"^(?:please )?(?:add|remove|delete|open|post|notify|assign|invite|fork|follow|star|like|dislike|submit|approve|disable|enable|cancel|update|set|edit my|go to|show me|fill|draft a (?:refund|new)|reply to|subscribe|upvote|downvote|thumbs|buy|order|reorder|book|reduce|increase|preview|turn (?:on|off)|remind me|play|call|send|check out|install|restart|move all|copy all|change (?:the|my) [^.]{1,60}\bto\b|make (?:the|all) [^.]{1,60} (?:to|public|private)\b|create (?:a|an)(?: new)? (?:\w+ )?(?:repo|repository|folder|file|issue|milestone|merge request|discussion|post|project|group|branch|account|playlist|event|directory|user|wiki)\b)\b", where="first"),
    Signal("acted", "an assistant that calls tools in the turns", {_A: 5.0}),
    Signal("observed", "results of tools in the turns", {_A: 3.0}),
    Signal("tools", "tools are given", {_A: 8.0}),
    Signal("finish_only", "finish[...] without acting", {_R: 1.5}),
    # Mathematics.
    Signal("latex", "mathematical markup", {_M: 2.8}, r"\\(?:frac|sqrt|boxed|cdot|sum|int|le|ge|leq|geq|pi|theta|alpha|begin|left|text|sin|cos|log|angle|triangle|overline|binom|mathbb|equiv|pmod|infty|to|times|ldots)\b|\$[^$\n]{1,80}[=+^\\<>][^$\n]{0,80}\$|\[asy\]|\$[a-z]\$"),
    Signal("equation", "equations", {_M: 1.4}, r"(?<![\w'\"])\d*[a-z](?:\^|²|³| ?\*\* ?)?\d? ?[+=−-] ?\d+[a-z]?\b(?!['\"])|\bf\(x\)|\bx \+ |= ?0\b|\^\{?\d|√|∑|∫|≤|≥|∠"),
    Signal("arithmetic", "arithmetic", {_M: 1.3, _R: 0.3}, r"\d ?[+×*÷] ?\d|\(\d+ ?[-+*/]|\d+ ?[-/] ?\d+ ?=|\d% of"),
    Signal("math_words", "mathematical words", {_M: 1.6}, words="triangle, equation, equations, polynomial, integer, integers, positive integer, real number, real numbers, probability, divisible, remainder, prime, prime number, perimeter, circumference, radius, diameter, hypotenuse, angle, degrees, square root, quadratic, derivative, integral, matrix, determinant, eigenvalue, geometric, arithmetic, sequence, ratio, percent, percentage, average, median, sum of, product of, least common, greatest common, how many ways, area of, volume of, slope, parabola, circle, rectangle, perpendicular, parallel, polygon, hexagon, fraction, numerator, denominator, simplify, evaluate, solve for, prove that, compute, factor, modulo, logarithm, vertices, coordinates, mean, standard deviation, permutations, combinations, expected value, digits, theorem, proof, convergent, sin, cos, tan"),
    Signal("story_sum", "a word problem: amounts and how much", {_M: 2.6}),
    Signal("rate_words", "quantities of everyday sums", {_M: 0.9}, words="how much, how many, each, per hour, per day, per week, twice as, three times, half of, half as, total, altogether, in total, cost, costs, dollars, sells, sold, buys, bought, spend, spent, earns, profit, discount, interest, km/hr, kmph, mph, miles, hours, minutes, speed, left, more than, fewer, remaining, price, rs, pounds, gallons, feet, years old, invested"),
    Signal("number_options", "options that are numbers", {_M: 2.0, _R: -0.3}, r"(?:^|[\s:(])[a-e]\) ?[$₹rs. ]*\d[\d,./:%√]*\s*(?:\w+ )?[b-e]\)"),
    Signal("boxed", "asks for a final answer", {_M: 1.5, _R: 0.3}, r"boxed|final answer|simplest form|lowest terms|nearest (?:tenth|hundredth|integer|cent)|as a (?:common )?fraction|in terms of [a-z]\b|answer in (?:radians|degrees)"),
    # Reasoning.
    Signal("paren_options", "options (A) (B) (C)", {_R: 2.0, _E: 0.4}, r"\(a\)[\s\S]{1,400}\(b\)|^options:\s*$|- yes\n- no|- valid|- (?:true|false)\n"),
    Signal("logic_words", "words of logic", {_R: 1.8}, words="tells the truth, lies, lie, truth, premise, premises, conclusion, deductively, valid or invalid, argument, hypothesis, entailment, entails, contradiction, plausible, implausible, sarcastic, antecedent, ambiguous, logically, logical, deduce, deduction, infer, inference, riddle, puzzle, riddles, syllogism, knights, knaves, knight, knave, clues, left of, right of, directly left, between, older than, younger than, taller than, heavier than, finished above, arranged, fixed order, second from, immediately, follow these instructions, starting point, true or false, not true, causal, caused, cause, intentionally, typical person, boolean, dyck, brackets, parentheses, ordering, step by step, explain your reasoning, which statement, must be true, if and only, who lives, who owns, what color, houses, father of, mother of, sibling, brother, sister, relationship, yesterday, tomorrow, date, today is, common sense, counterfactual, paradox, fallacy, odd one, analogy, next in the, pattern, swap, trade"),
    Signal("clues", "a list of clues", {_R: 2.2}, r"^ ?- each person|^\d+\. (?:the|no|if|[a-z]+ (?:is|does|has)) .+\n\d+\. (?:the|no|if|[a-z]+ (?:is|does|has)) |clues?:|statements? (?:is|are) (?:true|false|consistent)"),
    Signal("bool_expr", "truth values", {_R: 1.6}, r"\b(?:not|and|or) \(? ?(?:true|false)|\b(?:true|false) (?:and|or)\b"),
    Signal("thought_first", "question: ... answered by thought", {_R: 0.8}),
    # Knowledge.
    Signal("short_question", "a short question of fact", {_E: 3.2}),
    Signal("wh_start", "starts with who, when, where, which", {_E: 1.2}, r"^(?:who|when|where|which|whose|whom|in (?:what|which)|what (?:is|was|are|were|year|country|type|kind|does|did|do|city|language|currency|state)|how (?:many|old|tall|long|far))\b", where="first"),
    Signal("letter_options", "four lettered options", {_E: 2.6, _R: 0.5}, r"^a[.)] .+\n+b[.)] .+\n+c[.)] "),
    Signal("answer_stub", "ends with Answer:", {_E: 1.2, _G: 0.6}, r"answer:\s*$", where="last"),
    Signal("fact_words", "words of fact", {_E: 0.9}, words="capital, president, prime minister, actor, actress, song, album, movie, film, tv show, season, episode, world war, war, located, founded, invented, discovered, born, died, president of, king, queen, olympics, world cup, championship, super bowl, country, city, river, mountain, language, religion, currency, population, author, novel, played, plays, sings, sang, wrote, directed, starred, theory, species, cell, organ, disease, court, constitution, treaty, empire, philosopher, chemical, element, planet, economy, law, statute, of the following, which of the, best describes, refers to, known as, term for, most likely, patient, theorist, century"),
    # Writing.
    Signal("write_prose", "asks for a piece of prose or verse", {_W: 3.4, _I: 0.6, _H: -0.3}, r"\b(?:write|compose|draft|craft|create|pen|author|prepare|develop|produce|generate|help me write|come up with|need)\b[^.?!\n]{0,70}\b(?:story|stories|poem|poems|essay|article|blog|blog post|letter|e-?mail|speech|screenplay|(?:podcast|video|radio|film|tv|play|short) script|script (?:for|about)|comment|remarks|assessment|lesson plan|plan for|handbook|brochure|novel|chapter|song|lyrics|haiku|sonnet|limerick|press release|cover letter|resume|memo|report|proposal|review of|advertisement|ad copy|copy for|slogan|newsletter|monologue|scene|paragraph|fairy tale|fable|biography|caption|captions|product description|obituary|toast|eulogy|white paper|whitepaper|business plan|introduction|abstract|thesis|plan for a speech|tagline|diary|journal entry|editorial|op-ed|ballad|fan fiction|fanfiction|plot|outline for)\b", where="edges"),
    Signal("write_cjk", "asks for a text in Chinese or Japanese", {_W: 4.2}, r"撰写|写.{0,12}(?:篇|份|个|封|段|首|章|稿|书|文)|创作|改写|文案|作文|演讲稿|不少于\d+字|\d+字|評論|评语|教案|小説|小说|帮我(?:写|设计|整理|起草|准备)|起草|情节|策划|報告|书いて|書いて", where="edges"),
    Signal("writing_words", "words of style", {_W: 1.2}, words="tone, style of, audience, readers, narrative, protagonist, character, characters, plot, setting, rhyme, stanza, vivid, sensory, engaging, compelling, captivating, persuasive, professional tone, formal, opening paragraph, headline, structure, sections, draft, revise, proofread, edit the following, polish, word count, 文章, 风格, 字数, 要求, 内容, 结构"),
    # Chat.
    Signal("roleplay", "a role to play", {_H: 3.0, _W: -0.5}, r"\b(?:act (?:as|like)|pretend|role-?play|imagine you(?:'re| are)|(?:assume|take) (?:on )?the (?:role|persona|perspective)|imagine yourself|play the (?:role|part)|^as an? [\w -]{3,40},|embrace the role|stay in character|you are now|take on the role|picture yourself|in the style of a conversation|from now on)\b|^you are (?:an? |the )?(?!given|required|asked|provided|going|tasked)(?:\w+[ ,-]){0,6}(?:who|explaining|describing|giving|speaking|in a|at the|on a|talking|preparing|discussing|trying|from|of)\b", where="edges"),
    Signal("persona", "a character speaks", {_H: 1.6}, words="dialogue between, conversation between, converse, conversation, as a detective, as a pirate, character, respond as, reply as, your name is, wizard, pirate, detective, astronaut, medieval, superhero, vampire, alien, knight, queen, king, dragon, spaceship, time traveler, in character, explorer, ghost, therapist, life coach, mayor, villain"),
    Signal("greeting", "a greeting or thanks", {_H: 2.6}, r"^(?:hi|hello|hey|good (?:morning|evening|afternoon)|thanks|thank you|yo|sup|greetings|how are you|what's up|who are you|tell me a joke|tell me about yourself)\b", where="first"),
    Signal("advice", "asks for advice or an opinion", {_H: 2.4, _E: -0.8}, r"\b(?:how (?:can|should|do|would|could) (?:i|you|we|one|someone|people)|how to\b|what (?:should|can) i|what are (?:some|the (?:best|most|main|key|pros|benefits|advantages|differences|top))|do you (?:think|like|have|know|feel)|what do you think|should i|any (?:tips|advice|ideas|suggestions)|give me (?:some )?(?:advice|tips|ideas)|suggest (?:some|a)|recommend|why (?:do|does|is|are|might|would|should|did)|what if\b|pros and cons|is it (?:worth|normal|ok|better|possible)|tips for|can you (?:explain|tell me|recommend|suggest|describe)|explain (?:the|to me|how|why|what|in)|describe the|compare (?:and contrast|the)|what would|help me (?:understand|plan|decide|with)|discuss the)", where="edges"),
    Signal("feelings", "a person speaks of themselves", {_H: 1.2}, words="i feel, i'm feeling, my friend, my boyfriend, my girlfriend, my wife, my husband, my boss, my mom, my dad, my job, i love, i hate, i am so, i'm so, i've been, lonely, anxious, stressed, excited, lol, haha, my life, my dog, my cat, my kids, my son, my daughter, i can't, i don't know, honestly, feel like, myself, bored, weekend"),
    # Translation, summary, passage.
    Signal("translate", "asks for a translation", {_T: 6.0}, r"\btranslate\b(?! to (?:a|an)\b)|\btranslating\b|\btranslations? (?:of|for|to|into|agent|assistant)|\b(?:professional|expert) translator|\bhow (?:do|would|can) (?:you|i) say\b|\bin(?:to)? (?:english|french|german|spanish|italian|portuguese|chinese|mandarin|japanese|korean|arabic|hindi|russian|turkish|dutch|polish|swedish|vietnamese|thai|hebrew|greek|latin|ukrainian|indonesian|czech|finnish|simplified chinese):|翻译|翻訳|번역|переведи|перевод|traduis|traduire|traduce|traducir|traduz|traduci |übersetz|ترجم|अनुवाद|çevir|vertaal|tłumacz|dịch", where="edges"),
    Signal("lang_pair", "two languages named", {_T: 2.0}, r"\b(?:from|english|french|german|spanish|chinese|japanese|source)\b[^.\n]{0,25}\b(?:to|into|->|→)\b ?\b(?:english|french|german|spanish|italian|portuguese|chinese|mandarin|japanese|korean|arabic|hindi|russian|turkish|dutch|polish|target)\b", where="edges"),
    Signal("summarise", "asks for a summary", {_S: 5.0}, r"\bsummari[sz](?:e|ing)|\bsummary\b|\btl;?dr\b|\bkey (?:points|takeaways|findings) (?:of|from|in)|\bmain (?:points?|ideas?|takeaways) (?:of|from|in)\b|\bcondense|\bin (?:one|two|a single|\d) sentences?:|\babridge|\bexecutive summary|\bgist of|\brecap\b|\bmeeting minutes|\bheadline for the following|摘要|(?:请|帮我|^)总结(?:一下|以下|下面|这|上)|概括|要約|zusammen|résume|resume el|riassum|कсаराँश|сократи|резюм", where="edges"),
    Signal("passage", "a passage to answer from", {_G: 3.6}, r"^(?:context|passage|document|documents|article|text|paragraph|evidence|sources?|reference|excerpt|background|search results)(?: ?\[?\d*\]?)? ?[:\n]|<(?:context|document|documents|passage|doc|source|article|search_results)\b|\[\d\] ?\(?(?:title|source)|\[(?:doc|document|source|passage) ?\d|^\[1\] .+\n+\[2\] |\bretrieved\b"),
    Signal("by_passage", "answer from the text", {_G: 3.6}, r"\b(?:(?:based (?:only |solely )?(?:on|upon)|according to|using(?: only| just)?|with the help of|from) (?:only )?(?:the|this|these|each|your)? ?(?:above |following |below |provided |given |supplied |attached |retrieved )?|(?:given|in|read|use) (?:the |this )?(?:above|following|below|provided|given|attached|retrieved) (?:pieces of )?)(?:information|passages?|contexts?(?! of)|documents?|article|texts?|excerpts?|paragraphs?|sources?|snippets?|contract|transcript|manual|handbook|policy document|report|search results|knowledge)\b|answer (?:the question )?(?:only )?(?:using|from|based)|if the (?:answer|context|passage|documents?) (?:is|does|do|cannot|are)|cite (?:the|your)|quote the|not in the (?:context|document|text|passage)|do not use (?:outside|prior|external) knowledge", where="edges"),
    Signal("long_then_question", "a long passage, then a question", {_G: 3.6}),
    Signal("question_label", "Question:", {_G: 0.5, _E: 0.3, _R: 0.2}, r"^(?:question|q) ?:"),
    # Instructions.
    Signal("constraint", "checkable constraints on the answer", {_I: 4.0, _W: -0.4}, r"\b(?:at least|at most|exactly|no (?:more|fewer|less) than|less than|more than|fewer than|between|maximum of|minimum of|around) (?:\d+|one|two|three|four|five|six|seven|eight|nine|ten|twenty)(?: (?:to|and|-) \d+)? (?:\w+ ){0,2}(?:sentences?|paragraphs?|bullet ?points?|bullets|sections?|placeholders?|capital|letters?|lines?|characters|items?|steps)|\b(?:at least|exactly|at most|less than|fewer than|more than) (?:\d+|once|twice|three|four|five) times?\b(?! (?:as|the|more|that|his|her))|(?:do not|don't|without|avoid|refrain from) (?:us(?:e|ing)|includ(?:e|ing)|say(?:ing)?|mention(?:ing)?|add(?:ing)?) (?:any |the (?:word|letter|keyword)|commas|anything)|no commas|all (?:lower ?case|capital|caps|upper ?case)|(?:lower ?case|capital) letters|(?:in|all) (?:english )?(?:lowercase|uppercase|capital)|wrap (?:your|the)|double (?:quotation|angular)|your (?:entire )?(?:response|answer|output|reply) (?:must|should|has to|needs to)|(?:end|finish|start|begin) (?:your (?:response|answer|reply)|it|the \w+|each \w+|every \w+) with|include (?:the )?(?:keywords?|words?|a title|a postscript|at least)|markdown (?:divider|format|bullet)|in (?:json|yaml|xml|markdown|csv) format|p\.s\.|separated by|respond (?:only )?with (?:only|just|a single|one|yes or no)|answer with (?:only|just|one|a single)|first repeat|titled? wrapped|highlight|word \S+ (?:appear|at least|should)|the letter \w\b|<<|square brackets|(?:three|3|two|2|four|4|five|5|\d) (?:bullet points|paragraphs|sections)\b", where="edges"),
    Signal("word_count", "a length in words", {_I: 1.8, _W: 1.4}, r"\b\d[\d,]*(?: ?[-–] ?\d[\d,]*| to \d+)?[- ]words?\b|\d+(?:[-~—至到]\d+)?字|\b(?:at least|at most|less than|more than|under|fewer than|no more than|about|around|exactly) (?:\d+|\w+) words", where="edges"),
    Signal("given_task", "a task on a given input", {_I: 2.2}, r"^(?:given (?:a|an|the|some|two|that|your|this)|classify|categorize|label|extract|identify (?:the|all|which)|paraphrase|rewrite|rephrase|reword|convert (?:the|this|a)|list (?:the|all|\d|some|three|five)|select|choose|pick|rank|sort the|fill in|complete the (?:sentence|following)|edit|correct the|make (?:a list|the)|brainstorm|generate (?:a|an|some|\d|five|three)|suggest|find (?:the|out|a) (?:synonyms?|antonyms?|words?|toxic|misspelling)|determine (?:if|whether)|decide|tell me (?:if|whether)|replace|change the|turn (?:the|this)|combine|describe|match|in this task|you(?:'re| are| will be) (?:given|provided|asked|tasked)|your task is|create (?:a|an)|predict|detect|analy[sz]e the (?:sentiment|following)|simplify the (?:sentence|text)|arrange|arrange the words)", where="first"),
    Signal("task_and_input", "an instruction, then a short input", {_I: 1.8}),
    Signal("label_input", "labelled input: a field, a colon", {_I: 1.4}, r"^(?:input|sentence|review|tweet|text|product|name|title|word|topic|paragraph|comment|statement|recipe|item|category|email|customer|headline|message|phrase|description|ingredients|example|song|movie|book|quote|keywords?|sentence \d|email|lyrics)s?: ?\S"),
    Signal("classify", "classification or extraction", {_I: 2.2}, words="classify, classification, sentiment, positive or negative, categories, category, extract, entities, named entities, spam, toxic, label, labels, paraphrase, rewrite the, rephrase, synonyms, antonyms, grammatical, grammar, correct the, fill in, brainstorm, keywords, yes or no, output format, bullet points, brief, table format"),
    # Nothing.
    Signal("noise", "no readable request", {_O: 7.0}),
    Signal("placeholder", "a placeholder or test string", {_O: 3.0}, r"\A\W*(?:test(?:ing)?(?: test)*[ \d]*|n/?a|null|none|undefined|todo|tbd|\[?(?:image|attachment|redacted|deleted|removed|pad|blank)[^\n]{0,20}\]?|lorem ipsum[\s\S]*|placeholder[^\n]{0,20}|asdf\w*[\s\S]{0,60}|https?://\S+|\.+|ping|x+|foo|foo bar|hello world)\W*\Z"),
    # Form.
    Signal("tiny", "very few words", {_O: 0.5, _E: 0.3, _A: 0.2}),
    Signal("short", "one or two sentences", {_E: 0.3, _H: 0.2, _A: 0.1}),
    Signal("medium", "a paragraph", {}),
    Signal("long", "a long text", {_A: 0.5, _G: 0.5, _S: 0.3, _E: -1.0}),
    Signal("very_long", "a very long text", {_A: 1.2, _G: 0.5, _S: 0.2, _E: -2.0}),
    Signal("question_end", "ends with a question", {_E: 0.5, _R: 0.3, _M: 0.3, _G: 0.2}, r"\?\s*$", where="last"),
    Signal("no_capitals", "all lower case", {_E: 0.7}),
    Signal("you", "addresses the assistant", {_H: 0.4, _E: -0.6}, words="you, your, yourself"),
    Signal("me", "a first person", {_H: 0.3, _A: 0.2, _E: -0.6}, words="i, my, me, i'm, i've"),
    Signal("numbers", "many numbers", {_M: 0.5, _E: -0.4}),
    Signal("names", "many capitalised names", {_E: 0.3, _R: 0.2, _G: 0.2}),
    Signal("blank_lines", "several paragraphs", {_A: 0.2, _I: 0.2, _W: 0.2}),
    Signal("imperative", "starts with a verb", {_I: 0.3, _W: 0.2, _C: 0.2, _A: 0.2}, r"^(?:write|create|make|find|list|give|tell|show|add|count|calculate|compute|design|develop|generate|explain|describe|implement|build|open|get|set|provide|suggest|post|search|go)\b", where="first"),
    Signal("foreign", "not in English", {_T: 0.4, _W: 0.2, _E: -0.5}),
    Signal("several_users", "several user turns", {_H: 0.4, _A: 0.3}),
    Signal("system_turn", "a system turn", {_A: 0.8, _H: 0.3}),
)  # fmt: skip

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
_PATTERNS = [(i, re.compile(s.pattern, re.M), s.where) for i, s in enumerate(SIGNALS) if s.pattern]
_NOT_FACT = frozenset({"you", "your", "i", "my", "plausible", "sarcastic", "sentence", "following", "subreddit", "repo"})
_NUMBER_WORDS = frozenset({"one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twenty", "half", "twice", "dozen", "third", "double", "triple"})
_ASKING = ("write", "create", "implement", "how", "why", "what", "can", "could", "given", "explain", "you are", "please", "i want", "help", "develop", "convert", "def ", "complete")
_SENTENCE = re.compile(r"[.!?。！？](?:\s|$)|\n\n")
_NAMES = re.compile(r"(?<=[a-z,] )[A-Z][a-z]+")
_LANGUAGES_IN = {
    "python": r"\bpython[23]?\b|^(?:def|from|import) \w|^>>> ", "javascript": r"\bjavascript\b|\bnode\.?js\b|console\.log", "typescript": r"\btypescript\b",
    "java": r"\bjava\b|public static void", "c": r"\bin c\b(?![+#])|\bc (?:program|code|function|language)\b|#include <std", "c++": r"\bc\+\+|std::|#include <iostream", "c#": r"\bc#|\.net\b",
    "go": r"\bgolang\b|\bin go\b(?! to)|^func \w+\(|```go\b", "rust": r"\brust\b(?= |\.|,|$)[^.]{0,60}(?:code|function|struct|trait|program|crate|borrow)|in rust\b|^(?:pub )?fn \w+|```rust", "ruby": r"\bruby\b", "php": r"\bphp\b|<\?php", "kotlin": r"\bkotlin\b", "swift": r"\bswift(?:ui)?\b(?= |\.|,|$)[^.]{0,40}(?:code|function|app|class|view|ios)|in swift\b|```swift",
    "scala": r"\bin scala\b|```scala", "haskell": r"\bhaskell\b", "r": r"\bin r\b(?= |\.|,|$)|```r\b|\bggplot", "julia": r"\bin julia\b|```julia", "perl": r"\bperl\b", "lua": r"\blua\b", "sql": r"\bsql\b|\bselect\b.{1,200}\bfrom\b|create table|\bmysql\b|\bpostgres", "bash": r"\bbash\b|\bshell script\b|#!/bin/(?:ba)?sh|```(?:sh|bash)\b",
    "html": r"\bhtml\b|<div\b|<!doctype", "css": r"\bcss\b", "matlab": r"\bmatlab\b", "dart": r"\bdart\b|\bflutter\b", "powershell": r"\bpowershell\b", "assembly": r"\bassembly (?:code|language)\b|\bx86\b",
}  # fmt: skip
_PROGRAMMING = [(name, re.compile(pattern, re.M)) for name, pattern in _LANGUAGES_IN.items()]


class _Reading(NamedTuple):
    signals: list[int]  # in sixteenths, one per SIGNALS
    hashed: dict[int, str]  # bucket -> the word or pair that fell there
    tags: set[str]


def _read(text: str, messages: Sequence[Message] | None, tools: Any) -> _Reading:
    cut = text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\n{text[-TAIL:]}"
    lower = cut.lower()
    stripped = lower.strip()
    edges = stripped if len(stripped) <= 800 else f"{stripped[:400]}\n{stripped[-400:]}"
    where = {"all": lower, "first": stripped[:120], "last": stripped[-300:], "edges": edges}
    values = [0] * len(SIGNALS)
    for i, pattern, part in _PATTERNS:
        if pattern.search(where[part]):
            values[i] = _STEPS
    tokens = _TOKEN.findall(lower)
    hits = _phrase_hits(tokens)
    for i, n in hits.items():
        values[i] = max(values[i], round(_STEPS * min(1.0, math.sqrt(n) / 2)))
    for name, value in _form(cut, stripped, tokens, hits.get(_AT["complaint"], 0)).items():
        values[_AT[name]] = round(_STEPS * value)
    turns = _turns(messages or ())
    for name, value in turns.items():
        values[_AT[name]] = round(_STEPS * value)
    if tools:
        values[_AT["tools"]] = _STEPS
    if len(text) > len(cut):
        values[_AT["very_long"]] = _STEPS
    return _Reading(values, _hash(tokens), _tags(text, lower, values, messages, tools))


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


def _form(cut: str, stripped: str, tokens: list[str], complaints: int) -> dict[str, float]:
    """Return the signals that are shapes and not words, each 0..1."""
    n = len(tokens)
    letters = sum(map(str.isalpha, stripped))
    digits = sum(t[0].isdigit() for t in tokens)
    foreign = sum(c > "\u024f" for c in stripped[:600])
    sentences = len(_SENTENCE.findall(stripped)) or 1
    question = stripped.endswith("?") or bool(re.match(r"(?:who|when|where|what|which|how|in what|is|are|did|does|was)\b", stripped))
    asks_amount = bool(re.search(r"\b(?:how (?:much|many|long|far|old)|what (?:is|was|will be|would be|percent|fraction)|find|calculate|in how)\b", stripped[-400:]))
    paragraphs = [p for p in stripped.split("\n") if p.strip()]
    last = paragraphs[-1] if paragraphs else ""
    first = paragraphs[0] if paragraphs else ""
    asks_last = last.endswith("?") or last.startswith(("question", "q:", "answer"))
    before = len(stripped) - len(last) if asks_last else len(stripped) - len(first)
    long_passage = before > 500 and "\nb. " not in stripped and "\nb) " not in stripped and "(b)" not in stripped and "```" not in stripped and (asks_last or first.endswith("?"))
    vowelless = sum(t.isascii() and t.isalpha() and len(t) > 4 and not re.search(r"[aeiouy]", t) for t in tokens)
    amounts = digits + len(_NUMBER_WORDS & set(tokens))
    sum_of_numbers = digits >= 2 and bool(re.search(r"\d[\s()]*[-+*/=^<>]", stripped))
    odd = (letters < 3 and not sum_of_numbers) or (n > 0 and vowelless / n > 0.4) or (len(stripped) > 30 and len(set(stripped)) < 8)
    code = "```" in stripped or ";" in stripped
    return {
        "short_question": float(question and 3 <= n <= 22 and sentences <= 1 and not code and "\n" not in stripped and digits < 2 and not _NOT_FACT & set(tokens) and not stripped.startswith(("what if", "is the following", "if ", "how can", "how to", "how would", "how might", "why "))),
        "issue_like": float(complaints >= 3 and n > 30 and not stripped.startswith(_ASKING) and bool(re.search(r"\w_\w|\w\(|`|\w\.\w+\.\w|>>>", stripped))),
        "task_and_input": float(len(paragraphs) > 1 and 4 <= len(first.split()) <= 60 and n < 220 and first.endswith((".", ":")) and not asks_last and not code and digits < 6 and "options:" not in stripped),
        "story_sum": float(amounts >= 2 and (sentences >= 2 or "%" in stripped or "if " in stripped) and n < 160 and asks_amount and not code and "_" not in stripped),
        "long_then_question": float(long_passage),
        "noise": float(odd),
        "tiny": float(n <= 4), "short": float(4 < n <= 25), "medium": float(25 < n <= 90), "long": float(250 < n), "very_long": 0.0,
        "no_capitals": float(n > 2 and stripped == cut.strip()),
        "numbers": min(1.0, digits / (0.15 * n + 1)),
        "names": min(1.0, len(_NAMES.findall(cut)) / (0.15 * n + 1)),
        "blank_lines": min(1.0, cut.count("\n\n") / 4),
        "foreign": min(1.0, foreign / (0.4 * len(stripped[:600]) + 1)),
    }  # fmt: skip


def _turns(messages: Sequence[Message]) -> dict[str, float]:
    """Return the signals that the later turns give: an opening alone does not show whether anybody acted."""
    out: dict[str, float] = {}
    users = sum(m["role"] == "user" for m in messages)
    later = [m for m in messages if m["role"] in ("assistant", "tool")]
    said = "\n".join(m["content"][:600] for m in later[:6])
    if any(m.get("tool_calls") for m in later) or re.search(
        r"<tool_call>|<functioncall>|^Action(?: Input)?:(?! *finish)|^```bash|^DISCUSSION|<<<<<<< SEARCH|\"arguments\":", said, re.M
    ):
        out["acted"] = 1.0
    elif re.search(r"^Action: ?finish", said, re.M):
        out["finish_only"] = 1.0
    if any(m["role"] == "tool" for m in messages) or "finish_only" not in out and any(
        m["role"] == "user" and m["content"].startswith(("Observation:", "<output>", "<returncode>", "(Open file", "OBSERVATION"))
        for m in messages[1:8]
    ):
        out["observed"] = 1.0
    if re.match(r"Thought:", said):
        out["thought_first"] = 1.0
    out["several_users"] = float(users > 1)
    out["system_turn"] = float(any(m["role"] == "system" and len(m["content"]) > 80 for m in messages[:1]))
    return out


def _hash(tokens: list[str]) -> dict[int, str]:
    """Return bucket -> term for words, neighbouring pairs and the first words; digits count by their number of places."""
    words = [t if not t[0].isdigit() else "0" * min(len(t), 4) for t in tokens[:WORDS_READ]]
    terms = words + [f"{a} {b}" for a, b in zip(words, words[1:])] + [f"^{w}" for w in words[:2]]
    if len(words) > 2:
        terms.append("^" + " ".join(words[:3]))
    return {zlib.crc32(t.encode("utf-8", "surrogatepass")) & (BUCKETS - 1): t for t in terms}


def _tags(text: str, lower: str, values: list[int], messages: Sequence[Message] | None, tools: Any) -> set[str]:
    tags = {name for name, pattern in _PROGRAMMING if pattern.search(lower)}
    if tags & {"sql", "c", "r", "go", "css", "html"} or any(values[_AT[s]] for s in ("fence", "signature", "c_like", "imports", "sql", "diff", "doctest")):
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
        return _Model(fixed, np.zeros(len(DOMAINS), np.int64), np.zeros((BUCKETS, len(DOMAINS)), np.int8), 0.0, 1.0, 0.5)
    with np.load(MODEL, allow_pickle=False) as z:
        return _Model(
            z["signals"].astype(np.int64), z["bias"].astype(np.int64), z["words"],
            float(z["word_step"]), float(z["temperature"]), float(z["sure_from"]),
        )  # fmt: skip


def _decide(read: list[_Reading], codes: list[str]) -> list[Label]:
    model = _model()
    S = np.array([r.signals for r in read], dtype=np.int64)
    logits = (S @ model.signals / _STEPS + model.bias) / 256
    for i, r in enumerate(read):
        if r.hashed:
            total = model.words[list(r.hashed)].sum(axis=0, dtype=np.int64)
            logits[i] += total * (model.word_step / math.sqrt(len(r.hashed)))
    logits = np.round(logits / model.temperature, 6)
    best = logits.argmax(axis=1)
    P = np.exp(logits - logits.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)
    out = []
    for i, (r, code) in enumerate(zip(read, codes, strict=True)):
        p = round(float(P[i, best[i]]), 4)
        tags = r.tags if code in ("en", "und") else r.tags | {f"lang:{code}"}
        out.append(Label(DOMAINS[best[i]], p, p < model.sure_from, tuple(sorted(tags)), _why(r, int(best[i]), model)))
    return out


def _why(r: _Reading, domain: int, model: _Model) -> str:
    """Say what spoke for the domain: contributions above the mean of all domains, loudest first."""
    said: list[tuple[float, str]] = []
    for i, value in enumerate(r.signals):
        if value:
            w = model.signals[i]
            said.append((value / _STEPS * float(w[domain] - w.mean()) / 256, SIGNALS[i].says))
    if r.hashed and model.word_step:
        scale = model.word_step / math.sqrt(len(r.hashed))
        for bucket, term in r.hashed.items():
            w8 = model.words[bucket]
            said.append((scale * float(w8[domain] - w8.mean()), f"the words “{term.lstrip('^')}”"))
    loud = sorted(((round(v, 6), s) for v, s in said if v > 0.1), key=lambda x: (-x[0], x[1]))[:3]
    return "; ".join(s for _, s in loud) or "nothing in particular"
