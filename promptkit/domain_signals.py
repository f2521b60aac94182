"""The traits that promptkit/domains.py reads off a prompt, and the written rules: what each says about the domain.

A signal is a regular expression over the lower-cased text, or a list of words and phrases (more different hits count
more, up to four), or a shape that domains.py computes. Its weights are log-odds: +3 for a domain is a loud hint, +1 a
faint one. They were written by reading definitions and wrong guesses, so they are right about what is common and silent
about the rest; training (benchmarks/train_domains.py) may correct every one of them, and does so most where it has seen
several sources.

`where` matters as much as the pattern: "summary" in the middle of a contract is no request for a summary, so request
verbs are looked for at the edges of a text only.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any, NamedTuple


class Signal(NamedTuple):
    """One observable trait; `weights` (domain -> log-odds) is the written rule."""

    name: str
    says: str  # in words, for `Label.why`
    weights: dict[str, float]
    pattern: str = ""  # over lower-cased text, ^ and $ at lines; no pattern and no words: a shape
    words: str = ""  # or phrases of one to three words, separated by commas
    where: str = "all"  # all, first (120 characters), last (300), edges (400 of each: where requests stand), ends (150)


_C, _A, _M, _R, _E, _W = "coding", "agentic", "math", "reasoning", "encyclopedic", "writing"
_H, _T, _S, _G, _I, _O = "chat", "translation", "summarization", "rag", "instruction-following", "other"

SIGNALS: tuple[Signal, ...] = (
    # Code.
    Signal("fence", "fenced code", {_C: 1.0, _A: 0.4}, r"```"),
    Signal(
        "signature", "a function or class definition", {_C: 2.2},
        r"^[ \t]*(?:async |export |pub |static |private )?(?:def|class|fn|func|function|fun|sub|struct"
        r"|interface) +\w+ *[(:<{]",
    ),
    Signal(
        "c_like", "C-like code", {_C: 1.8},
        r"#include|\bpublic (?:static|class|void|int)|\bint main|std::|console\.log|system\.out|\bvar \w+ ?="
        r"|\bconst \w+ ?=|\blet \w+ ?=|</?(?:div|html|script|body|span)\b|\$\w+ ?=|=> ?\{",
    ),
    Signal(
        "imports", "import statements", {_C: 1.5},
        r"^(?:import [\w.]+(?: as \w+)?|from [\w.]+ import .+|using [\w.]+;|require\(.+\);?)$",
    ),
    Signal("doctest", "doctest examples", {_C: 1.4, _A: 0.3}, r"^\s*>>> "),
    Signal("assertion", "assertions", {_C: 1.2}, r"^\s*assert\b|\bassert \w+\("),
    Signal(
        "sql", "SQL", {_C: 1.6},
        r"\bselect\b[^.?!]{1,200}\bfrom \w+|create table|insert into|\bsql (?:query|statement)"
        r"|\bwhere clause",
    ),
    Signal("inline_code", "code between backticks", {_C: 0.8, _A: 0.8}, r"(?<!`)`[^`\n]{2,60}`(?!`)"),
    Signal("calls", "calls in the text", {_C: 0.5}, r"\b\w+\([\w, '\"=]*\)"),
    Signal("snake", "identifiers", {_C: 0.5, _A: 0.2}, r"\b[a-z]+_[a-z]+\w*\b"),
    Signal(
        "write_code", "asks for code", {_C: 3.0},
        r"\b(?:write|create|implement|develop|design|build|construct|generate|make|provide|give me|code"
        r"|complete|define|need|produce)\b[^.?!\n]{0,60}\b(?:function|program"
        r"|(?<!podcast )(?<!video )script(?! about)|code|class|method|algorithm|api|regex|regular expression"
        r"|query|module|(?:web |mobile |android |ios |iphone )?app|component|website|web page|webpage|macro"
        r"|decorator|unit tests?|dockerfile|makefile|parser|endpoint|library|data structure|stack|queue"
        r"|linked list|subroutine|stylesheet|formula in excel)\b",
        where="edges",
    ),
    Signal(
        "fix_code", "asks to mend or explain code", {_C: 2.2},
        r"\b(?:fix|debug|refactor|optimi[sz]e|correct|modify|edit|convert|rewrite|explain"
        r"|find (?:the )?(?:bug|error)s? in|what does|identify|review|analy[sz]e|improve|port"
        r"|add (?:comments|type hints|tests))\b[^.?!\n]{0,50}\b(?:code|function|script|program|bug|bugs"
        r"|snippet|syntax|query|class|method|loop|regex|css|html|sql|python|java|javascript)\b",
        where="edges",
    ),
    Signal(
        "program_words", "programming words", {_C: 2.0},
        words="function, functions, array, arrays, string, strings, integer array, list of integers, variable, "
        "variables, loop, loops, recursion, recursive, algorithm, python, java, javascript, typescript, "
        "c++, c#, rust, golang, ruby, php, kotlin, swift, html, css, sql, bash, regex, json, xml, api, "
        "dataframe, pandas, numpy, compile, compiler, runtime, class, object, method, return, returns, "
        "parameter, parameters, argument, input string, output, linked list, binary tree, hash map, "
        "dictionary, tuple, database, react, django, flask, node.js, docker, kubernetes, git, linux, "
        "unit test, unit tests, time complexity, snippet, program, script, code, null, boolean, int, "
        "float, stdin, stdout, byte, thread, async, iterator, matrix, sort, sorted, implement, "
        "codebase, backend, frontend, css class, dom, exception, typeerror, segfault, "
        "closure, pointer, bitwise",
    ),
    Signal(
        "contest", "contest form: input, output, limits", {_C: 2.6, _M: -0.5},
        r"(?:time|memory) limit|\btest ?cases?\b|sample input|example input|^#* *-*input(?: format)?-*:?$"
        r"|^#* *constraints:?|standard input|1 ?(?:<=|≤|\\le) ?\w|codeforces|leetcode|stdin",
    ),
    Signal("code_ask_tail", "code at the end", {_C: 0.9}, r"[;{}]\s*$|^ {4}\S.*$(?![\s\S]*\n\S)", where="last"),
    # Agents and tools.
    Signal(
        "tool_schema", "tool schemas", {_A: 4.5},
        r'available tools|"parameters"\s*:\s*\{|"type": ?"function"|<tools>|tool_declare'
        r"|access to the following (?:functions|tools|apis)|function[- ]calling|\btool_calls?\b"
        r"|<functioncall>|available tool classes|use the (?:provided|available|given|following) (?:tools"
        r"|functions)|list of (?:tools|functions)",
    ),
    Signal(
        "react", "thought, action, observation", {_A: 3.5},
        r"^(?:action|observation|action input|act):|\bthought:"
        r"|respond with (?:exactly )?one (?:bash )?command|one command|next action|take one action"
        r"|your (?:next )?action",
    ),
    Signal(
        "shell_agent", "a shell or computer to act in", {_A: 3.5},
        r"autonomous|interact[^.\n]{0,40}(?:computer|shell|terminal|environment|browser|database"
        r"|operating system|file ?system)|command line with|bash (?:tool|commands? to|block)|shell prompt"
        r"|working directory|execute (?:bash|shell|the) commands?|linux container|you have access to (?:a"
        r"|the|an) [^.\n]{0,40}(?:shell|terminal|sandbox|computer|browser|repository|repo|filesystem"
        r"|file system|database|interpreter|environment|machine|notebook)|(?:uploaded|cloned) (?:a|the"
        r"|into)[^.\n]{0,40}repositor|<pr_description>|<uploaded_files>|<issue_description>|/testbed"
        r"|[/]workspace|submit (?:command|your changes)",
    ),
    Signal(
        "issue", "an issue report", {_A: 3.0},
        r"^#* ?\**(?:steps? to reproduce|to reproduce|how to reproduce"
        r"|expected (?:behaviou?r|results?|outcome|output)|actual (?:behaviou?r|results?|outcome)"
        r"|bug (?:report|summary|description)|describe the bug|reproduction|what happened|environment info"
        r"|system information|versions?|additional context|proposed (?:fix|solution|change))\b.{0,25}$"
        r"|^description$|\bregression\b|\bpull request\b|\bi expected\b|github\.com/\S+/issues|github issue"
        r"|code for reproduction|\bworkaround\b|please resolve|<!--",
    ),
    Signal(
        "complaint", "words of a bug report", {_A: 1.4, _C: -0.3},
        words="bug, fails, failing, crash, crashes, incorrect, incorrectly, regression, reproduce, instead of, "
        "raises, should be, should not, shouldn't, ignored, inconsistent, doesn't work, does not work, "
        "not working, unexpected, unexpectedly, deprecated, deprecation, upgraded, docs, patch, i'm using, "
        "workaround, support for, no longer, causes, behavior, behaviour, would be nice, breaks, "
        "backwards compatible, misleading, wrong, error message, as of, since version, latest version, "
        "traceback, upstream, pr, maintainers, it seems, i think, i get, there is no, it would be, does not",
    ),
    Signal("issue_like", "identifiers and complaints without a request", {_A: 3.4, _C: -1.2}),
    Signal(
        "exercise", "an exercise with headings", {_C: 2.6, _A: -1.5},
        r"\A#+ (?:introduction|instructions|description|problem(?: statement)?|task|exercise)$",
    ),
    Signal(
        "traceback", "a stack trace", {_A: 1.2, _C: 1.2},
        r'traceback \(most recent|^\s*at [\w.$]+\(|^\s*file "[^"]+", line \d+|\b\w+(?:error|exception): ',
    ),
    Signal("diff", "a diff", {_A: 1.0, _C: 1.2}, r"^diff --git|^@@ |^\+\+\+ |^--- a/"),
    Signal(
        "paths", "file paths", {_A: 1.2, _C: 0.3},
        r"(?<![\w/:.])(?:~|\.{0,2})/[\w.-]+(?:/[\w.-]+)*|\b[\w-]+/[\w-]+\.(?:py|js|ts|go|rs|java|c|cpp|rb)\b",
    ),
    Signal(
        "os_task", "work on files of a machine", {_A: 2.0, _C: 0.2},
        words="home directory, current directory, directory, directories, log file, log files, file named, "
        "files with, subdirectories, hidden files, cpu usage, disk space, disk usage, running processes, "
        "process, processes, permissions, permission, ubuntu, cron, crontab, systemd, "
        "environment variable, file system, hostname, ip address, root user, username, usernames, sudo, "
        "chmod, grep, tar",
    ),
    Signal(
        "ui_task", "work in an application", {_A: 2.4},
        words="this machine, my store, search terms, contributor, walking distance, travel time, by car, "
        "entire history, last quarter, order history, this product, rating of, reserve, flights, search tool, "
        "available actions, single command, a shell, calculator, my cart, wish list, "
        "wishlist, my order, my orders, my account, customers, repository, repo, "
        "repos, commits, commit, merge request, merge requests, milestone, subreddit, upvote, downvote, "
        "subscribe, newsletter, open the, click, navigate to, search for, checkout, draft a refund, "
        "post a, forum, followers, issues, assign, invite, set my, update my, order number, tracking, "
        "add a, delete all, change my, driving time, walk from, drive from, top 1, contributors, reviews, "
        "reviewers, product, products, price range, brand, this page, the page, the website, browser, "
        "screenshot, login, log in, fill out, dashboard, gitlab",
    ),
    Signal(
        "service_policy", "the policy of a service agent", {_A: 3.0},
        r"\bpolicy\b[\s\S]{0,400}\b(?:user|customer|tool)|transfer (?:the user )?to a human|user id"
        r"|as an? [\w ]{2,30} agent\b|tool call at a time|you are an? (?:[\w-]+ ){0,4}agent\b",
    ),
    Signal(
        "please_do", "asks to look up or do something now", {_A: 1.0, _H: 0.2},
        r"\b(?:can|could) you (?:please )?(?:help me )?(?:find|book|fetch|get|check|look up|retrieve|search"
        r"|convert|calculate|track|schedule|send|order|set|update"
        r"|tell me the (?:current|latest|weather|price))|\b(?:i need to|i want to|i'd like to"
        r"|i would like to|help me|please) (?:book|know the current|find out|fetch|retrieve|schedule|cancel"
        r"|order|transfer|check the|get the|update|track)|\b(?:retrieve|fetch) (?:the|a|all|my|me|\d)"
        r"|current (?:stock price|weather|exchange rate|price)|right now|latest (?:news|price)",
        where="edges",
    ),
    Signal(
        "table_task", "questions over tables or a knowledge base", {_A: 2.6},
        r"the (?:name|headers?) of this table|knowledge base|sparql|^entities: \[|the headers of"
        r"|\bin the (?:\w+ )?(?:database|table named)\b",
    ),
    Signal(
        "ui_command", "a command for an application", {_A: 2.4, _I: -0.6},
        r"^(?:please )?(?:add|remove|delete|open|post|notify|assign|invite|fork|follow|star|like|dislike"
        r"|submit|approve|disable|enable|cancel|update|set|edit my|go to|show me|fill|draft a (?:refund|new)"
        r"|reply to|subscribe|upvote|downvote|thumbs|buy|order|reorder|book|reduce|increase|preview"
        r"|turn (?:on|off)|remind me|play|call|send|check out|install|restart|move all|copy all"
        r"|change (?:the|my) [^.]{1,60}\bto\b|make (?:the|all) [^.]{1,60} (?:to|public|private)\b"
        r"|create (?:a|an)(?: new)? (?:\w+ )?(?:repo|repository|folder|file|issue|milestone|merge request"
        r"|discussion|post|project|group|branch|account|playlist|event|directory|user|wiki)\b)\b",
        where="first",
    ),
    Signal("acted", "an assistant that calls tools in the turns", {_A: 5.0}),
    Signal("observed", "results of tools in the turns", {_A: 3.0}),
    Signal("tools", "tools are given", {_A: 8.0}),
    Signal("finish_only", "finish[...] without acting", {_R: 1.5}),
    # Mathematics.
    Signal(
        "latex", "mathematical markup", {_M: 2.8},
        r"\\(?:frac|sqrt|boxed|cdot|sum|int|le|ge|leq|geq|pi|theta|alpha|begin|left|text|sin|cos|log|angle"
        r"|triangle|overline|binom|mathbb|equiv|pmod|infty|to|times|ldots)\b"
        r"|\$[^$\n]{1,80}[=+^\\<>][^$\n]{0,80}\$|\[asy\]|\$[a-z]\$",
    ),
    Signal(
        "equation", "equations", {_M: 1.4},
        r"(?<![\w'\"])\d*[a-z](?:\^|²|³| ?\*\* ?)?\d? ?[+=−-] ?\d+[a-z]?\b(?!['\"])|\bf\(x\)|\bx \+ |= ?0\b"
        r"|\^\{?\d|√|∑|∫|≤|≥|∠",
    ),
    Signal("arithmetic", "arithmetic", {_M: 1.3, _R: 0.3}, r"[0-9] ?[+×*÷] ?\d|\(\d+ ?[-+*/]|\d+ ?[-/] ?\d+ ?=|\d% of"),
    Signal(
        "math_words", "mathematical words", {_M: 1.6},
        words="triangle, equation, equations, polynomial, integer, integers, positive integer, real number, "
        "real numbers, probability, divisible, remainder, prime, prime number, perimeter, circumference, "
        "radius, diameter, hypotenuse, angle, degrees, square root, quadratic, derivative, integral, "
        "matrix, determinant, eigenvalue, geometric, arithmetic, sequence, ratio, percent, percentage, "
        "average, median, sum of, product of, least common, greatest common, how many ways, area of, "
        "volume of, slope, parabola, circle, rectangle, perpendicular, parallel, polygon, hexagon, "
        "fraction, numerator, denominator, simplify, evaluate, solve for, prove that, compute, factor, "
        "modulo, logarithm, vertices, coordinates, mean, standard deviation, permutations, combinations, "
        "expected value, digits, theorem, proof, convergent, sin, cos, tan",
    ),
    Signal("story_sum", "a word problem: amounts and how much", {_M: 2.6}),
    Signal(
        "rate_words", "quantities of everyday sums", {_M: 0.9},
        words="how much, how many, each, per hour, per day, per week, twice as, three times, half of, half as, "
        "total, altogether, in total, cost, costs, dollars, sells, sold, buys, bought, spend, spent, "
        "earns, profit, discount, interest, km/hr, kmph, mph, miles, hours, minutes, speed, left, "
        "more than, fewer, remaining, price, rs, pounds, gallons, feet, years old, invested",
    ),
    Signal(
        "number_options", "options that are numbers", {_M: 2.0, _R: -0.3},
        r"(?<![a-z0-9])[a-e]\) ?[$₹rs. ]*[0-9][\d,./:%√]*\s*(?:\w+ )?[b-e]\)",
    ),
    Signal(
        "boxed", "asks for a final answer", {_M: 1.5, _R: 0.3},
        r"boxed|final answer|simplest form|lowest terms|nearest (?:tenth|hundredth|integer|cent)"
        r"|as a (?:common )?fraction|in terms of [a-z]\b|answer in (?:radians|degrees)",
    ),
    # Reasoning.
    Signal(
        "paren_options", "options (A) (B) (C)", {_R: 2.0, _E: 0.4},
        r"^ *\(a\).*\n+ *\(b\)|^options:\s*$|- yes\n- no|- valid|- (?:true|false)\n",
    ),
    Signal(
        "logic_words", "words of logic", {_R: 1.8},
        words="tells the truth, lies, lie, truth, premise, premises, conclusion, deductively, valid or invalid, "
        "argument, hypothesis, entailment, entails, contradiction, plausible, implausible, sarcastic, "
        "antecedent, ambiguous, logically, logical, deduce, deduction, infer, inference, riddle, puzzle, "
        "riddles, syllogism, knights, knaves, knight, knave, clues, left of, right of, directly left, "
        "older than, younger than, taller than, heavier than, finished above, arranged, "
        "fixed order, second from, immediately, follow these instructions, starting point, true or false, "
        "not true, causal, caused, cause, intentionally, typical person, boolean, dyck, brackets, "
        "parentheses, ordering, step by step, explain your reasoning, which statement, must be true, "
        "if and only, who lives, who owns, what color, houses, father of, mother of, sibling, brother, "
        "sister, relationship, yesterday, tomorrow, date, today is, common sense, counterfactual, paradox, "
        "fallacy, odd one, analogy, next in the, pattern, swap, trade",
    ),
    Signal(
        "clues", "a list of clues", {_R: 2.2},
        r"^ ?- each person|^\d+\. (?:the|no|if|[a-z]+ (?:is|does|has)) .+\n\d+\. (?:the|no|if"
        r"|[a-z]+ (?:is|does|has)) |clues?:|statements? (?:is|are) (?:true|false|consistent)",
    ),
    Signal(
        "bool_expr", "truth values", {_R: 1.6},
        r"\b(?:not|and|or) \(? ?(?:true|false)|\b(?:true|false) (?:and|or)\b",
    ),
    Signal("thought_first", "question: ... answered by thought", {_R: 0.8}),
    # Knowledge.
    Signal("short_question", "a short question of fact", {_E: 3.2}),
    Signal(
        "wh_start", "starts with who, when, where, which", {_E: 1.2},
        r"^(?:who|when|where|which|whose|whom|in (?:what|which)"
        r"|what (?:is|was|are|were|year|country|type|kind|does|did|do|city|language|currency|state)"
        r"|how (?:many|old|tall|long|far))\b",
        where="first",
    ),
    Signal(
        "fact_ask", "asks for a name, a year, a place, a difference", {_E: 2.6},
        r"\A(?:name (?:the|all|one|two|three|four|five)|what(?:'s| is| was| are) the (?:difference between"
        r"|(?:full |real |proper "
        r"|scientific |chemical |latin )?(?:name|capital|symbol|population|speed|atomic|boiling|longest|largest"
        r"|smallest|highest"
        r"|oldest|deepest|fastest|biggest))|differences? between|true or false|fill in the blanks?)"
        r"|\A(?:[^.?!\n]{10,120}[,:;] (?:and )?|[^.?!\n]{10,120}[.?] )(?:(?:in )?which (?:two|three|four|five"
        r"|one|year|country|century)|in what year"
        r"|who (?:is usually|was the first|wrote|invented)|when was it|how (?:far|high|wide|old|long) (?:is"
        r"|was) (?:it|the))\b",
    ),
    Signal("letter_options", "four lettered options", {_E: 2.6, _R: 0.5}, r"^a[.):] .+\n+b[.):] .+\n+c[.):] "),
    Signal("answer_stub", "ends with Answer:", {_E: 1.2, _G: 0.6}, r"answer:\s*$", where="last"),
    Signal(
        "fact_words", "words of fact", {_E: 0.9},
        words="capital, president, prime minister, actor, actress, song, album, movie, film, tv show, season, "
        "episode, world war, war, located, founded, invented, discovered, born, died, president of, king, "
        "queen, olympics, world cup, championship, super bowl, country, city, river, mountain, language, "
        "religion, currency, population, author, novel, played, plays, sings, sang, wrote, directed, "
        "starred, theory, species, cell, organ, disease, court, constitution, treaty, empire, philosopher, "
        "chemical, element, planet, economy, law, statute, of the following, which of the, best describes, "
        "refers to, known as, term for, most likely, patient, theorist, century",
    ),
    # Writing.
    Signal(
        "write_prose", "asks for a piece of prose or verse", {_W: 3.4, _I: 0.6, _H: -0.3},
        r"\b(?:write|compose|draft|craft|create|pen|author|prepare|develop|produce|generate|help me write"
        r"|come up with|need)\b[^.?!\n]{0,70}\b(?:story|stories|poem|poems|essay|article|blog|blog post"
        r"|letter|e-?mail|speech|screenplay|(?:podcast|video|radio|film|tv|play|short) script"
        r"|script (?:for|about)|comment|remarks|assessment|lesson plan|plan for|handbook|brochure|novel"
        r"|chapter|song|lyrics|haiku|sonnet|limerick|press release|cover letter|resume|memo|report|proposal"
        r"|review of|advertisement|ad copy|copy for|slogan|newsletter|monologue|scene|paragraph|fairy tale"
        r"|fable|biography|caption|captions|product description|obituary|toast|eulogy|white paper|whitepaper"
        r"|business plan|introduction|abstract|thesis|plan for a speech|tagline|diary|journal entry"
        r"|editorial|op-ed|ballad|fan fiction|fanfiction|plot|outline for)\b",
        where="edges",
    ),
    Signal(
        "piece_named", "starts with the piece that is wanted", {_W: 3.6, _E: -1.5},
        r"\A(?:(?:an?|two|three|four|five|one|short|funny|quick|\d+)[ -](?:\w+[ -]){0,2})?(?:haikus?|poems?"
        r"|sonnets?|limericks?|toasts?|speech|eulogy"
        r"|press release|cover letter|covering letter|subject lines?|tagline|slogans?|reply to (?:a|the|my)"
        r"|caption|invitation|blurb|product description"
        r"|short story|birthday card|love letter|obituary|newsletter|opening line|lyrics)\b(?! (?:is|are|was"
        r"|of the|has)\b)",
    ),
    Signal(
        "write_cjk", "asks for a text in Chinese or Japanese", {_W: 4.2},
        r"撰写|写.{0,12}(?:篇|份|个|封|段|首|章|稿|书|文)|创作|改写|文案|作文|演讲稿|不少于\d+字|\d+字|評論"
        r"|评语|教案|小説|小说|帮我(?:写|设计|整理|起草|准备)"
        r"|起草|情节|策划|報告|书いて|書いて",
        where="edges",
    ),
    Signal(
        "writing_words", "words of style", {_W: 1.2},
        words="tone, style of, audience, readers, narrative, protagonist, character, characters, plot, setting, "
        "rhyme, stanza, vivid, sensory, engaging, compelling, captivating, persuasive, professional tone, "
        "formal, opening paragraph, headline, structure, sections, draft, revise, proofread, "
        "edit the following, polish, word count, 文章, 风格, 字数, 要求, 内容, 结构",
    ),
    # Chat.
    Signal(
        "roleplay", "a role to play", {_H: 3.0, _W: -0.5},
        r"\b(?:act (?:as|like)|pretend|role-?play|imagine you(?:'re| are)"
        r"|(?:assume|take) (?:on )?the (?:role|persona|perspective)|imagine yourself|play the (?:role|part)"
        r"|^as an? [\w -]{3,40},|embrace the role|stay in character|you are now|take on the role"
        r"|picture yourself|in the style of a conversation|from now on)\b|^you are (?:an? |the )?(?!given"
        r"|required|asked|provided|going|tasked)(?:\w+[ ,-]){0,6}(?:who|explaining|describing|giving"
        r"|speaking|in a|at the|on a|talking|preparing|discussing|trying|from|of)\b",
        where="edges",
    ),
    Signal(
        "persona", "a character speaks", {_H: 1.6},
        words="dialogue between, conversation between, converse, conversation, as a detective, as a pirate, "
        "character, respond as, reply as, your name is, wizard, pirate, detective, astronaut, medieval, "
        "superhero, vampire, alien, knight, queen, king, dragon, spaceship, time traveler, in character, "
        "explorer, ghost, therapist, life coach, mayor, villain",
    ),
    Signal(
        "greeting", "a greeting or thanks", {_H: 2.6},
        r"^(?:hi|hello|hey|good (?:morning|evening|afternoon)|thanks|thank you|yo|sup|greetings|how are you"
        r"|what's up|who are you|tell me a joke|tell me about yourself)\b",
        where="first",
    ),
    Signal(
        "advice", "asks for advice or an opinion", {_H: 2.4, _E: -0.8},
        r"\b(?:how (?:can|should|do|would|could) (?:i|you|we|one|someone|people)|how to\b"
        r"|what (?:should|can) i"
        r"|what are (?:some|the (?:best|most|main|key|pros|benefits|advantages|differences|top))"
        r"|do you (?:think|like|have|know|feel)|what do you think|should i"
        r"|any (?:tips|advice|ideas|suggestions)|give me (?:some )?(?:advice|tips|ideas)|suggest (?:some|a)"
        r"|recommend|pros and cons"
        r"|is it (?:worth|normal|ok|better|possible)|tips for"
        r"|can you (?:explain|tell me|recommend|suggest|describe)|^explain (?:the|to me|how|why|what|in)"
        r"|\A(?:please )?explain (?!(?:this|your|each|following|code|and)\b)[a-z]"
        r"|describe the|compare (?:and contrast|the)|help me (?:understand|plan|decide|with)"
        r"|discuss the)",
        where="edges",
    ),
    Signal(
        "why_start", "starts with why or what if", {_H: 2.4, _E: -0.8},
        r"\A(?:but |and |so |ok,? )?(?:why\b(?! is this)|what (?:if|would)\b)",
    ),
    Signal(
        "feelings", "a person speaks of themselves", {_H: 1.2},
        words="i feel, i'm feeling, my friend, my boyfriend, my girlfriend, my wife, my husband, my boss, "
        "my mom, my dad, my job, i love, i hate, i am so, i'm so, i've been, lonely, anxious, stressed, "
        "excited, lol, haha, my life, my dog, my cat, my kids, my son, my daughter, i can't, i don't know, "
        "honestly, feel like, myself, bored, weekend",
    ),
    # Translation, summary, passage.
    Signal(
        "translate", "asks for a translation", {_T: 6.0},
        r"\btranslate\b(?! to (?:a|an)\b)|\btranslating\b|\btranslations? (?:of|for|to|into|agent|assistant)"
        r"|\b(?:professional|expert) translator|\bhow (?:do|would|can) (?:you|i) say\b"
        r"|\bin(?:to)? (?:english|french|german|spanish|italian|portuguese|chinese|mandarin|japanese|korean"
        r"|arabic|hindi|russian|turkish|dutch|polish|swedish|vietnamese|thai|hebrew|greek|latin|ukrainian"
        r"|indonesian|czech|finnish|simplified chinese):|\b(?:put|render|turn|get) (?:it|this|that|them"
        r"|the [\w ]{1,30}|these [\w ]{1,20}) into (?:modern |plain |simple )?(?:english|french|german"
        r"|spanish|italian|portuguese|chinese|japanese|korean|arabic|hindi|russian|turkish|dutch|polish|swedish"
        r"|latin|greek)\b"
        r"|\bis (?:this|my) translation\b|sagt man auf|comment (?:dit-on|dirais-tu)|cómo se dice|como se diz"
        r"|come si dice|как (?:будет|сказать)"
        r"|hoe zeg je|jak (?:powiedzieć|się mówi)|hur säger man|怎么说|何と言い|翻译|翻訳|번역|переведи|перевод"
        r"|traduis|traduire|traduce"
        r"|traducir|traduz|traduci |übersetz|ترجم|अनुवाद|çevir|vertaal|tłumacz|dịch",
        where="edges",
    ),
    Signal(
        "lang_pair", "two languages named", {_T: 2.0},
        r"\b(?:from|english|french|german|spanish|chinese|japanese|source)\b[^.\n]{0,25}\b(?:to|into|->"
        r"|→)\b ?\b(?:english|french|german|spanish|italian|portuguese|chinese|mandarin|japanese|korean"
        r"|arabic|hindi|russian|turkish|dutch|polish|target)\b",
        where="edges",
    ),
    Signal(
        "summarise", "asks for a summary", {_S: 6.0},
        r"\bsummari[sz](?:e|ing)|\bsummary\b|\btl;?dr\b|\bkey (?:points|takeaways|findings) (?:of|from|in)"
        r"|\bmain (?:points?|ideas?|takeaways) (?:of|from|in)\b|\bcondense|\bin (?:one|two|a single"
        r"|\d) sentences?:|\babridge|\bexecutive summary|\bgist of|\brecap\b|\bmeeting minutes"
        r"|\b(?:boil|cut|shorten|trim) (?:it|this|that|the [\w ]{1,30}) (?:down )?to\b|\bas minutes\b"
        r"|minutes of the (?:meeting|call)"
        r"|\bheadline for the following|摘要|(?:请|帮我|^)总结(?:一下|以下|下面|这|上)|概括|要約"
        r"|zusammenfass|\bfass[et]?\b[^.?!]{1,80}\bzusammen\b|résume|resume el"
        r"|riassum|कсаराँश|сократи|резюм",
        where="ends",
    ),
    Signal(
        "passage", "a passage to answer from", {_G: 3.6},
        r"^(?:context|passage|document|documents|article|text|paragraph|evidence|sources?|reference|excerpt"
        r"|background|search results)(?: ?\[?\d*\]?)? ?[:\n]|<(?:context|document|documents|passage|doc"
        r"|source|article|search_results)\b|\[\d\] ?\(?(?:title|source)|\[(?:doc|document|source"
        r"|passage) ?\d|^\[1\] .+\n+\[2\] |\bretrieved\b",
    ),
    Signal(
        "by_passage", "answer from the text", {_G: 3.6},
        r"\b(?:(?:based (?:only |solely )?(?:on|upon)|according to|using(?: only| just)?|with the help of"
        r"|from) (?:only )?(?:the|this|these|each|your)? ?(?:above |following |below |provided |given "
        r"|supplied |attached |retrieved )?|(?:given|in|read|use) (?:the |this )?(?:above|following|below"
        r"|provided|given|attached|retrieved) (?:pieces of )?)(?:information|passages?|contexts?(?! of)"
        r"|documents?|article|texts?|excerpts?|paragraphs?|sources?(?! (?:to|code)\b)|snippets?|contract"
        r"|transcript|manual"
        r"|handbook|policy document|report|search results|knowledge)\b"
        r"|answer (?:the question )?(?:only )?(?:using|from|based)|if the (?:answer|context|passage"
        r"|documents?) (?:is|does|do|cannot|are)|cite (?:the|your)|quote the (?:sentence|passage|text|line"
        r"|words?|source|part|clause|paragraph)|not in the (?:context|document"
        r"|text|passage)|do not use (?:outside|prior|external) knowledge",
        where="edges",
    ),
    Signal("long_then_question", "a long passage, then a question", {_G: 3.6}),
    Signal("question_label", "Question:", {_G: 0.5, _E: 0.3, _R: 0.2}, r"^(?:question|q) ?:"),
    # Instructions.
    Signal(
        "constraint", "checkable constraints on the answer", {_I: 4.0, _W: -0.4},
        r"\b(?:at least|at most|exactly|no (?:more|fewer|less) than|less than|more than|fewer than|between"
        r"|maximum of|minimum of|around) (?:\d+|one|two|three|four|five|six|seven|eight|nine|ten"
        r"|twenty)(?: (?:to|and|-) \d+)? (?:\w+ ){0,2}(?:sentences?|paragraphs?|bullet ?points?|bullets"
        r"|sections?|placeholders?|capital|letters?|lines?|characters|items?|steps)|\b(?:at least|exactly"
        r"|at most|less than|fewer than|more than) (?:\d+|once|twice|three|four"
        r"|five) times?\b(?! (?:as|the|more|that|his|her))|(?:do not|don't|without|avoid"
        r"|refrain from) (?:us(?:e|ing)|includ(?:e|ing)|say(?:ing)?|mention(?:ing)?|add(?:ing)?) (?:any "
        r"|the (?:word|letter|keyword)|commas|anything)|no commas|all (?:lower ?case|capital|caps"
        r"|upper ?case)|(?:lower ?case|capital) letters|(?:in|all) (?:english )?(?:lowercase|uppercase"
        r"|capital)|wrap (?:your|the)|double (?:quotation|angular)|your (?:entire )?(?:response|answer"
        r"|output|reply) (?:must|should|has to|needs to)|(?:end|finish|start"
        r"|begin) (?:your (?:response|answer|reply)|it|the \w+|each \w+|every \w+) with"
        r"|include (?:the )?(?:keywords?|words?|a title|a postscript|at least)|markdown (?:divider|format"
        r"|bullet)|in (?:json|yaml|xml|markdown|csv) format|p\.s\.|separated by"
        r"|respond (?:only )?with (?:only|just|a single|one|yes or no)|answer with (?:only|just|one"
        r"|a single)|first repeat|titled? wrapped|highlight|word \S+ (?:appear|at least|should)"
        r"|the letter \w\b|<<|square brackets|(?:three|3|two|2|four|4|five|5|\d) (?:bullet points|paragraphs"
        r"|sections)\b",
        where="edges",
    ),
    Signal(
        "word_count", "a length in words", {_I: 1.8, _W: 1.4},
        r"\b\d[\d,]*(?: ?[-–] ?\d[\d,]*| to \d+)?[- ]words?\b|\d+(?:[-~—至到]\d+)?字|\b(?:at least|at most"
        r"|less than|more than|under|fewer than|no more than|about|around|exactly) (?:\d+|\w+) words",
        where="edges",
    ),
    Signal(
        "given_task", "a task on a given input", {_I: 1.8},
        r"^(?:given (?:a|an|the|some|two|that|your|this)|classify|categorize|label|extract"
        r"|identify (?:the|all|which)|paraphrase|rewrite|rephrase|reword|convert (?:the|this|a)"
        r"|list (?:the|all|\d|some|three|five)|select|choose|pick|rank|sort the|fill in"
        r"|complete the (?:sentence|following)|edit|correct the|make (?:a list|the)|brainstorm"
        r"|generate (?:a|an|some|\d|five|three)|suggest"
        r"|find (?:the|out|a) (?:synonyms?|antonyms?|words?|toxic|misspelling)|determine (?:if|whether)"
        r"|decide|tell me (?:if|whether)|replace|change the|turn (?:the|this)|combine|match"
        r"|in this task|you(?:'re| are| will be) (?:given|provided|asked|tasked)|your task is"
        r"|predict|detect|analy[sz]e the (?:sentiment|following)"
        r"|simplify the (?:sentence|text)|arrange|arrange the words)",
        where="first",
    ),
    Signal("task_and_input", "an instruction, then a short input", {_I: 1.8}),
    Signal(
        "label_input", "labelled input: a field, a colon", {_I: 1.4},
        r"^(?:input|sentence|review|tweet|text|product|name|title|word|topic|paragraph|comment|statement"
        r"|recipe|item|category|email|customer|headline|message|phrase|description|ingredients|example|song"
        r"|movie|book|quote|keywords?|sentence \d|email|lyrics)s?: ?\S",
    ),
    Signal(
        "classify", "classification or extraction", {_I: 2.2},
        words="classify, classification, sentiment, positive or negative, categories, category, extract, "
        "entities, named entities, spam, toxic, label, labels, paraphrase, rewrite the, rephrase, "
        "synonyms, antonyms, grammatical, grammar, correct the, fill in, brainstorm, keywords, yes or no, "
        "output format, bullet points, brief, table format",
    ),
    # More of the same in other words, and in other languages than English.
    Signal("language_named", "a programming language", {_C: 1.3, _A: 0.6}),
    Signal(
        "code_foreign", "asks for code, not in English", {_C: 3.4, _W: -2.5},
        r"\b(?:funktion|programm|skript|parser|fonction|função|funzione|función|funci[oó]n|programma"
        r"|funktion(?:en)?|código|codice"
        r"|fonctions?|funkcj[aęi]|funkce|функци\w+|код|скрипт\w*|програм\w+|запрос)\b|函数|代码|程序|编写|関数"
        r"|プログラム|コード|配列|数组"
        r"|复杂度|算法|用 ?(?:java|python|c\+\+|go|rust|javascript|sql)|实现|함수|코드|프로그램|دالة|برنامج"
        r"|फ़ंक्शन|प्रोग्राम",
    ),
    Signal(
        "write_foreign", "asks for a text, not in English", {_W: 3.0},
        r"\b(?:schreib(?:e|en)?|verfasse|formuliere|entwirf|écri[st]|écrivez|rédige[zr]?|escribe|escríbeme"
        r"|redacta|escreva|escreve|redija"
        r"|scrivi|scrivimi|redigi|schrijf|napisz|napiš|skriv|напиши\w*|составь|сочини|yaz|tulis(?:kan)?|viết"
        r"|kirjoita|scrie)\b"
        r"[^.?!\n]{0,50}\b(?:geschichte|gedicht|brief|e-?mail|rede|artikel|text|aufsatz|absage|einladung"
        r"|märchen|histoire|poème|lettre"
        r"|courriel|mail|discours|article|conte|texte|cuento|historia|poema|carta|correo|discurso|artículo"
        r"|relato|texto|conto|crônica"
        r"|artigo|racconto|poesia|lettera|discorso|articolo|testo|verhaal|gedicht|brief|toespraak|opowiadanie"
        r"|wiersz|list|povídku"
        r"|dopis|berättelse|dikt|brev|рассказ\w*|стих\w*|письм\w*|сказк\w*|статью|текст|mektup|hikaye|hikâye"
        r"|şiir|surat|cerita|puisi"
        r"|thư|truyện|bài (?:thơ|văn|viết)|tarina|runo)|(?:اكتب|أكتب)|लिखिए|लिखें|लिखो|써 ?(?:줘|주세요)|작성해"
        r"|書いてください",
        where="edges",
    ),
    Signal(
        "write_verb_foreign", "asks to write, not in English", {_W: 0.8, _C: 0.6, _I: 0.4},
        r"\b(?:schreib(?:e|t)?|écri[st]|escribe|escreva|scrivi|schrijf|napisz|skriv|напиши)\b",
        where="first",
    ),
    Signal(
        "math_foreign", "asks how much, not in English", {_M: 3.0},
        r"多少|几个|一共|剩下|求出?|计算|証明せよ|求め(?:よ|なさい|てください)|证明|概率|確率|方程|圆|三角形"
        r"|整数|いくつ|何通り|구하|구한|확률|정수|수열"
        r"|umfang|fläche|wahrscheinlichkeit|gleichung|zinsen|anfangskapital|primzahl\w*|\bberechne|\bbestimme"
        r"|\bbeweise|^zeige:?\b"
        r"|geschwindigkeit|\bdémontr|\bcalcul(?:e[rz]?|ar?)\b|\bcalcol[aio]\w*|probabilité|équation"
        r"|combien (?:de temps|coûte|en|y a)|nombres? (?:premiers?|entiers?)"
        r"|demuestra|probabilidad|ecuación|números? (?:primos?|enteros?)|raíz cuadrada|quantos|múltiplo"
        r"|prove que|probabilidade"
        r"|números? inteiros?|equação|dimostra|probabilità|equazione|numer[io] (?:primi|interi)|bereken|bewijs"
        r"|kansberekening"
        r"|oblicz|udowodnij|prawdopodobieństw|równani|вычисли|докажи|найдите|сколько|вероятност|уравнени"
        r"|hesapla|olasılı|kanıtla|denklem"
        r"|hitunglah|buktikan|peluang|tính|chứng minh|xác suất|phương trình|कितने|सिद्ध|ज्ञात कीजिए|كم عدد|احسب"
        r"|أثبت|احتمال|معادلة",
        where="ends",
    ),
    Signal(
        "advice_foreign", "asks for advice, not in English", {_H: 2.8},
        r"怎么(?!分)|如何|怎样|建议|推荐|どうすれば|どうしたら|おすすめ|アドバイス|教えてもら|어떻게|좋을까"
        r"|추천|조언|worauf|\bwie (?:kann|soll|finde|gehe|schaffe"
        r"|mache) ich|was (?:soll|kann) ich|\b(?:comment|que) (?:puis-je|dois-je|faire)|je (?:ne )?(?:sais|dois"
        r"|voudrais)|devrais-je"
        r"|¿?\b(?:cómo|qué) (?:puedo|debo|hago|me|le)|debería|como posso|o que (?:faço|devo)|\bdevo\b"
        r"|come (?:posso|faccio|devo)|consigli"
        r"|dovrei|hoe (?:kan|moet|pak) ik|wat (?:kan|moet) (?:ik|dat)|как (?:мне|лучше|быть)"
        r"|что (?:мне )?делать|посовет|jak (?:się|mam|mogę)"
        r"|co (?:mam|robić)|hur (?:ska|kan|gör) jag|nasıl|ne yap|tavsiye|bagaimana (?:cara|saya)|sebaiknya"
        r"|làm (?:sao|thế nào)|nên\b"
        r"|कैसे|क्या कर|सलाह|كيف|نصيح|ماذا (?:أفعل|علي)|چگونه|چطور|πώς (?:μπορ|να)",
        where="ends",
    ),
    Signal(
        "self_foreign", "a person speaks of themselves, not in English", {_H: 1.6},
        r"\b(?:ich (?:bin|habe|soll|will|möchte)|mein(?:e[mnrs]?)? (?:mann|frau|sohn|tochter|chef|freund\w*"
        r"|hund|katze|schwester|bruder|mutter)"
        r"|je suis|j'ai|ma (?:fille|femme|mère|sœur)|mon (?:mari|fils|chef|ami|chat|chien)|estoy|llevo"
        r"|mi (?:hijo|hija|jefe|novi[oa]|madre|perro)"
        r"|estou|meu (?:filho|chefe|pai)|minha (?:filha|mãe)|sono|mio (?:figlio|marito)|mia (?:figlia|moglie"
        r"|madre)|ik (?:ben|heb)|mijn"
        r"|jestem|mój|moja|jag (?:är|har)|у меня|мой|моя|я не)\b|我(?:最近|妈|爸|女儿|儿子|老公|老婆)|私(?:は"
        r"|の)|제가|저는|मेर[ाीे]|मैं|(?:أريد|لدي|ابني|ابنتي)"
        r"|\bsaya\b|\btôi\b",
        where="first",
    ),
    Signal(
        "fact_foreign", "asks for a fact, not in English", {_E: 3.0, _W: -0.5},
        r"哪一?[年条个位座些]|是什么|谁|誰|何年|どれ|どこ|いつ|の作者|何と呼|違いを?|ですか|누구|언제|어디|무엇"
        r"|몇 년|어느"
        r"|\bwer (?:hat|ist|war|schrieb|erfand)|\bwann (?:wurde|war|hat)|\bin welche[mnr]|\bwelche[rsnm]?\b"
        r"|\bwo (?:liegt|steht|wurde)|^was ist"
        r"|\bwie (?:heißt|hoch|viele|lang|groß)|^nenne|\bunterschied zwischen|\b(?:quelle?s?|qui) (?:est|a|sont"
        r"|fut|était)\b|en quelle année|^qui\b"
        r"|\b(?:lequel|laquelle|lesquel\w*)\b|différence entre|combien de (?!temps)|(?:^|¿|\b)(?:cuál|quién"
        r"|dónde|cuándo)(?:es)?\b|en qué año|qué es\b"
        r"|diferencia entre|\b(?:quem|onde|quando|qual|quais) (?:é|foi|fica|são|era|dest\w+|d[ao]s?)\b"
        r"|em que ano|\b(?:chi|dove|quando|quale?)"
        r" (?:è|ha|fu|si|era|sono)\b|in (?:che|quale) anno|differenza tra|\b(?:wie|waar|wanneer) (?:is|was|werd"
        r"|heeft|schreef|ligt)\b|in welk jaar|welke"
        r"|\b(?:kto|kiedy|gdzie)\b|w którym|jak nazywa|\b(?:kdo|kdy|kde)\b|ve kterém|\b(?:vem|vilke[nt]"
        r"|vad heter|hur (?:stor|många|hög))\b"
        r"|\b(?:hvem|hvornår|hvor (?:ligger|mange|stor)|hvilke[nt])\b|\b(?:kuka|milloin|missä|mikä on)\b"
        r"|\b(?:cine|când|unde) (?:a|este|se)\b"
        r"|\b(?:ki|mikor|hol|melyik) (?:volt|írta|van)\b|^кто|\bкто (?:был|написал|открыл)|^как(?:ая|ой|ие)"
        r"|^где|\bв каком|\bкогда (?:был|произош)"
        r"|\bхто\b|\bколи\b|\bhangi\b|\bkaç\b|\bkimdir\b|ne zaman|\bnerede|\bsiapa|\bkapan\b|di mana|\bberapa\b"
        r"|apa nama"
        r"|năm nào|ở đâu|\blà gì|\bai (?:là|đã)|thành phố nào|bao nhiêu|कौन|\bकब\b|कहाँ|किस |किसने|কে\b|কখন|কোন"
        r"|কোথায়|من هو|من هي|ما هي?\b|متى|أين|في أي|كم |أي من"
        r"|چه کسی|چه سالی|کدام|کجا|ποιο[ςι]|ποια|πότε|πού\b|מי \b|מתי|איפה|ใคร|เมื่อไ|ที่ไหน|யார்|எப்போது",
        where="ends",
    ),
    Signal(
        "task_foreign", "a small task, not in English", {_I: 2.6},
        r"\b(?:ordne|sortiere|klassifiziere|markiere|zähle|korrigiere|formuliere .{0,20}um|schreibe .{0,30}um"
        r"|classe[rz]?|trie[rz]?|remets|corrige[rz]?"
        r"|extrais|complète|réponds uniquement|clasifica|ordena|corrige|extrae|completa|devuelve solo"
        r"|responde solo|classifique|ordene|corrija|extraia"
        r"|classifica|riordina|correggi|estrai|rispondi solo|sorteer|verbeter|posortuj|popraw|sortera"
        r"|отсортируй|исправь|выпиши|расставь)\b"
        r"|genau (?:\d+|drei|vier|fünf) (?:sätze|wörter|wörtern|stichpunkte)|exactement (?:\d+|trois|quatre"
        r"|cinq) (?:phrases|mots)"
        r"|exactamente (?:\d+|tres|cuatro) (?:frases|palabras)|書き換え|並べ替え|並べて|바꿔|분류|정렬",
        where="ends",
    ),
    Signal(
        "passage_foreign", "a passage to answer from, not in English", {_G: 4.0},
        r"^(?:kontext|contexte|contexto|contesto|context|konteks|bağlam|контекст|текст|auszug|extrait|extracto"
        r"|السياق|النص|संदर्भ|गद्यांश|지문|背景)\b.{0,40}:"
        r"|材料|根据以下|根据上述|根据(?:文章|材料|上文)|阅读下面|本文によると|次の文章を読|以下の文章|次の資料"
        r"|다음 (?:글|지문)|गद्यांश पढ़|अनुच्छेद पढ़"
        r"|d'après le (?:texte|document|passage)|selon le texte|según el texto|de acuerdo com o texto"
        r"|secondo il testo|laut (?:dem )?text"
        r"|(?:lies|lisez|lis|lee|leia|leggi) (?:den|das|le|el|o|il) (?:folgenden?|texte?|texto|testo|seguinte)"
        r"|прочитай(?:те)? текст|согласно тексту"
        r"|اقرأ النص|وفق[ًا]* للنص|đọc đoạn|bacalah teks|metne göre|przeczytaj tekst",
    ),
    Signal(
        "puzzle_foreign", "a puzzle, not in English", {_R: 3.0},
        r"真话|假话|谁(?:是|住|说)|推理|嘘つき|正直者|거짓말|wer (?:lügt|wohnt|hat welche|sitzt)|woher kommt"
        r"|prämisse\w*|konklusion|schluss(?:folgerung)? gültig"
        r"|chi abita|qui (?:ment|habite)|quién (?:miente|vive)|quem (?:mente|mora)|кто (?:лжёт|лжет|врёт|живёт"
        r"|живет)|rätsel\b|énigme|acertijo|adivinanza"
        r"|indovinello|загадка|罠|谜|なぞなぞ|पहेली|bilmece|zagadk|raadsel|yalan söyl|kim yalan"
        r"|siapa yang berbohong",
    ),
    Signal(
        "riddle", "a riddle or a question of what follows", {_R: 2.8, _E: -1.5},
        r"does it follow|\brelated to (?:me|him|her|[a-z]+\?)|what happened\?|comes next|not belong"
        r"|odd one out|would [^.?]{1,60} have\b"
        r"|how does (?:he|she) do it|across? (?:a|the) river|(?:every|all) labels?|which (?:door|box"
        r"|guard)|who (?:stole|did it|is lying|owns|lives)"
        r"|what (?:am i|is the order)|\b(?:in which|what) order did they|who has which|who is what"
        r"|which (?:one )?doesn't belong"
        r"|one of them (?:lies|is lying)|always (?:lies?|tells? the truth)|counterfeit|fake (?:coin|one)"
        r"|\bbalance scale|three weighings|labels? (?:are|is) (?:all )?wrong|is (?:it|this) (?:valid|plausible"
        r"|possible that)|plausible\?"
        r"|can we (?:conclude|infer)|where will \w+ look",
    ),
    Signal(
        "cast", "a small cast with places, times or things to match", {_R: 2.0},
        r"\b(?:three|four|five|six|seven|eight) (?:\w+ )?(?:friends|sisters|brothers|siblings|colleagues"
        r"|neighbou?rs|suspects"
        r"|people|children|students|players|houses|boxes|drawers|cards|books|volumes|talks|runners|cars|animals"
        r"|switches)\b",
        where="first",
    ),
    Signal(
        "places", "who stands where", {_R: 2.4},
        r"\bnot next to\b|neither first nor last|directly (?:left|right|behind|before|after|above|below)"
        r"|right behind"
        r"|somewhere (?:to the )?(?:left|right)|is next to (?!no|im)|immediately (?:left|right|before|after)"
        r"|comes before \w+ and"
        r"|not necessarily in (?:this|that) order|places? ahead of|at (?:one|either) end\b"
        r"|at the (?:far )?(?:left|right) end",
    ),
    Signal(
        "rigour", "to be proved or derived", {_M: 2.0},
        r"\b(?:prove (?:that|it|your)|show that|derive (?:the|a|an)|a derivation|find all (?:real|integer|pairs"
        r"|solutions|functions"
        r"|primes|n\b|x\b)|solve (?:for|the (?:initial|equation|system|recurrence|inequality))"
        r"|expected (?:number|value)"
        r"|p\([a-z∪∩|=<> ,0-9]+\) ?=|boundary condition|converges?\b|irrational)",
    ),
    Signal(
        "preference", "asks what is better or fitting", {_H: 3.0, _E: -2.6},
        r"pros and cons|which (?:one )?is (?:better|best) for|what's a good|better for|a good name"
        r"|like i'?m\b|like i am \w+|let'?s play"
        r"|\bdo you (?:think|like|prefer|ever|enjoy|have a favou?rite)\b|\brecommend|ideas for|\blol\b"
        r"|affect (?:people|me|us|my)|^how can (?:a|an|i|we|you|small)|should i\b|what do you think",
        where="edges",
    ),
    Signal(
        "translate_fields", "a language to translate into", {_T: 5.5},
        r"^(?:target|english|french|german|spanish|italian|portuguese|chinese|japanese|korean|arabic"
        r"|russian|dutch|polish)(?: \(\w+\))?:\s*\Z"
        r"|machine translation|\bthe (?:latin|french|german|spanish|greek) for\b|translated? (?:into|to|from) \w+",
    ),
    Signal("text_then_question", "a text, then a question", {_G: 2.0}),
    Signal(
        "write_more", "asks to continue or better a text", {_W: 3.0},
        r"\b(?:continue|finish|complete) (?:the|this|my) (?:story|poem|tale|scene|chapter|novel)"
        r"|improve the (?:style|flow|wording)"
        r"|(?:rewrite|revise|polish|edit) (?:this|the|my) [^.\n]{0,40}(?:paragraph|statement|letter|email"
        r"|report|essay|text|so that it sounds|tone)"
        r"|\b(?:write|draft|create|design|prepare)\b[^.?!\n]{0,60}\b(?:agreement|contract|case study"
        r"|linkedin post|post about|promotional text"
        r"|copy|pitch deck|conversational script|manual|guide|study|analysis)\b",
        where="edges",
    ),
    Signal(
        "computing", "a concept of programming or computing", {_C: 8.0, _W: -2.0, _H: -2.0, _E: -2.0},
        words="b-tree, b-trees, hash table, hash tables, hash map, linked list, binary tree, binary search, red-black "
        "tree, priority queue, data structure, data structures, algorithm, algorithms, big-o, time complexity, "
        "quicksort, mergesort, sorting algorithm, dynamic programming, graph traversal, compiler, compilers, "
        "interpreter, garbage collection, garbage collector, virtual memory, file system, operating system, "
        "mutex, semaphore, deadlock, race condition, multithreading, concurrency, coroutine, coroutines, event "
        "loop, database, databases, database index, sql, transaction isolation, sharding, paxos, load balancer, "
        "microservices, rest api, graphql, grpc, http, tcp, udp, dns, tls, docker, kubernetes, git, regex, "
        "regular expression, regular expressions, unit test, unit tests, refactoring, design pattern, design "
        "patterns, object-oriented, functional programming, type system, generics, pointers, memory management, "
        "cache eviction, caching, bloom filter, lru cache, api, sdk, backend, frontend, web server, websocket, "
        "websockets, vim, emacs, neovim, excel formula, spreadsheet formula, vba, "
        "mysql, postgresql, sqlite, mongodb, redis, oauth, serialization, protobuf, garbage-collected, bytecode, "
        "jit, llvm, simd",
        where="edges",
    ),
    # Nothing.
    Signal("noise", "no readable request", {_O: 7.0}),
    Signal(
        "placeholder", "a placeholder or test string", {_O: 3.0},
        r"\A\W*(?:test(?:ing)?(?: test)*[ \d]*|n/?a|null|none|undefined|todo|tbd"
        r"|\[?(?:image|attachment|redacted|deleted|removed|pad|blank)[^\n]{0,20}\]?|lorem ipsum[\s\S]*"
        r"|placeholder[^\n]{0,20}|asdf\w*[\s\S]{0,60}|https?://\S+|\.+|ping|x+|foo|foo bar|hello world)\W*\Z",
    ),
    # Form.
    Signal("tiny", "very few words", {_O: 0.5, _E: 0.3, _A: 0.2}),
    Signal("short", "one or two sentences", {_E: 0.3, _H: 0.2, _A: 0.1}),
    Signal("medium", "a paragraph", {}),
    Signal("long", "a long text", {_A: 0.3, _G: 0.5, _S: 0.3, _E: -1.0}),
    Signal("very_long", "a very long text", {_A: 0.7, _G: 0.5, _S: 0.2, _E: -2.0}),
    Signal("question_end", "ends with a question", {_E: 0.5, _R: 0.3, _M: 0.3, _G: 0.2}, r"\?\s*$", where="last"),
    Signal("no_capitals", "all lower case", {_E: 0.7}),
    Signal("you", "addresses the assistant", {_H: 0.4, _E: -0.6}, words="you, your, yourself"),
    Signal("me", "a first person", {_H: 0.3, _A: 0.2, _E: -0.6}, words="i, my, me, i'm, i've"),
    Signal("numbers", "many numbers", {_M: 0.5, _E: -0.4}),
    Signal("names", "many capitalised names", {_E: 0.3, _R: 0.2, _G: 0.2}),
    Signal("blank_lines", "several paragraphs", {_A: 0.2, _I: 0.2, _W: 0.2}),
    Signal(
        "imperative", "starts with a verb", {_I: 0.3, _W: 0.2, _C: 0.2, _A: 0.2},
        r"^(?:write|create|make|find|list|give|tell|show|add|count|calculate|compute|design|develop|generate"
        r"|explain|describe|implement|build|open|get|set|provide|suggest|post|search|go)\b",
        where="first",
    ),
    Signal("foreign", "not in English", {_T: 0.4, _W: 0.2, _E: -0.5}),
    Signal("several_users", "several user turns", {_H: 0.4, _A: 0.3}),
    Signal("system_turn", "a system turn", {_A: 0.8, _H: 0.3}),
)  # fmt: skip

# Programming languages that a text names or holds, for tags; over lower-cased text.
PROGRAMMING = {
    "ada": r"\bin ada\b(?= |\.|,|$)|```ada\b",
    "assembly": r"\bassembly (?:code|language)\b|\bx86\b",
    "bash": r"\bbash\b|\bshell script\b|#!/bin/(?:ba)?sh|```(?:sh|bash)\b",
    "c": r"\bin c\b(?![+#'])|\bc (?:program|code|function|language)\b|#include <std",
    "c#": r"\bc#|\.net (?:core|framework|\d)",
    "c++": r"\bc\+\+|std::|#include <iostream",
    "css": r"\bcss\b",
    "dart": r"\bin dart\b|\bflutter\b|```dart",
    "elixir": r"\belixir (?:code|module|function|process)|\bin elixir\b|\bdefmodule\b|\|> ?enum\.",
    "erlang": r"\berlang\b",
    "f#": r"\bf#",
    "fortran": r"\bfortran\b",
    "go": r"\bgolang\b|\bin go\b(?! to)|^func \w+\(|```go\b",
    "haskell": r"\bhaskell\b",
    "html": r"\bhtml\b|<div\b|<!doctype",
    "java": r"\bjava\b|public static void",
    "javascript": r"\bjavascript\b|\bnode\.?js\b|console\.log|```js\b",
    "julia": r"\bin julia\b|```julia",
    "kotlin": r"\bkotlin\b",
    "lua": r"\bin lua\b|\blua script|```lua",
    "matlab": r"\bmatlab\b",
    "ocaml": r"\bocaml\b",
    "perl": r"\bperl\b",
    "php": r"\bphp\b",
    "powershell": r"\bpowershell\b",
    "prolog": r"\bprolog\b",
    "python": r"\bpython[23]?\b|^def \w+\(|^from \w[\w.]* import |^import \w+(?: as \w+)?$|^>>> ",
    "r": r"\bin r\b(?= |\.|,|$)|```r\b|\bggplot",
    "ruby": r"\bin ruby\b|\bruby (?:code|script|method|class|on rails)|```ruby",
    "rust": r"\bin rust\b|\brust (?:code|function|program|struct|crate)|^(?:pub )?fn \w+|```rust",
    "scala": r"\bin scala\b|```scala",
    "sql": r"\bsql\b|\bselect\b.{1,200}\bfrom\b|create table|\bmysql\b|\bpostgres",
    "swift": r"\bin swift\b|\bswiftui\b|```swift",
    "verilog": r"\b(?:system)?verilog\b|\bvhdl\b",
    "zig": r"\bin zig\b|```zig",
    "typescript": r"\btypescript\b|```ts\b",
}  # fmt: skip


def alternatives(pattern: str) -> list[str]:
    """Return the parts between the outermost bars: `a|b(c|d)` gives `a` and `b(c|d)`.

    One occurs where the whole occurs, and a single group behind a border is taken apart likewise. Searched apart, each
    can be ruled out by its own `needed` strings.
    """
    out, depth, in_class, start, i = [], 0, False, 0, 0
    while i < len(pattern):
        c = pattern[i]
        if c == "\\":
            i += 1
        elif in_class:
            in_class = c != "]"
        elif c == "[":
            in_class = True
            i += pattern.startswith("^]", i + 1) * 2 or pattern.startswith("]", i + 1)
        elif c in "()":
            depth += 1 if c == "(" else -1
        elif c == "|" and depth == 0:
            out.append(pattern[start:i])
            start = i + 1
        i += 1
    out.append(pattern[start:])
    if len(out) == 1 and (whole := _WHOLE_GROUP.fullmatch(pattern)):
        before, inside, behind = whole.groups()
        if len(parts := alternatives(inside)) > 1 and _balanced(inside):
            return [f"{before}{p}{behind}" for p in parts]
    return [a for part in out for a in alternatives(part)] if len(out) > 1 else out


# One group and nothing beside it but word or line borders: \\b(?:a|b)\\b is \\ba\\b or \\bb\\b.
_WHOLE_GROUP = re.compile(r"(\\b|\^|)\(\?:(.*)\)(\\b|)", re.S)


def _balanced(pattern: str) -> bool:
    """Return whether no bracket closes before it opens: `a)(b` is not one group's inside."""
    depth = 0
    for c in re.sub(r"\\.|\[\^?\]?[^\]]*\]", "", pattern):
        depth += (c == "(") - (c == ")")
        if depth < 0:
            return False
    return depth == 0


def needed(pattern: str) -> list[tuple[str, ...]]:
    """Return lists of strings; every match of the pattern holds at least one of each. The first list is the rarest.

    Looking for strings costs next to nothing beside searching for a pattern, and most signals are absent from most
    texts. Read from the parse tree of the standard library, whose module moved in Python 3.11.

    >>> needed(r"\\b(?:write|draft) (?:an? )?e-?mail")
    [('draft', 'write'), ('mail',)]
    """
    parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    found = sorted(_literals(parser.parse(pattern)), key=_rarity, reverse=True)
    return list(dict.fromkeys(tuple(sorted(_shortest(s))) for s in found))


def _literals(tree: Any) -> list[set[str]]:
    """Return a list for each part of a sequence that has one."""
    found: list[set[str]] = []
    run = ""
    for op, argument in tree:
        name = str(op)
        if name == "LITERAL":
            run += chr(argument)
            continue
        found.append({run})
        run = ""
        if name == "SUBPATTERN":
            found += _literals(argument[3])
        elif name == "BRANCH":
            branches = [max(_literals(b), key=_rarity, default=set()) for b in argument[1]]
            found.append(set().union(*branches) if all(branches) else set())
        elif name == "IN":
            found.append(_characters(argument))
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and argument[0] >= 1:
            found += _literals(argument[2])
    found.append({run})
    return [s for s in found if s and len(s) <= 100 and all(map(_is_rare, s))]


def _rarity(strings: set[str]) -> tuple[int, int]:
    """Order lists: the longer their shortest string, then the fewer strings, the rarer."""
    return min(len(x.strip()) for x in strings), -len(strings)


def _shortest(strings: set[str]) -> set[str]:
    """Leave out strings that hold another one."""
    return {x for x in strings if not any(y != x and y in x for y in strings)}


def _characters(items: Any) -> set[str]:
    """Return the characters of a small class such as [+=-], or nothing."""
    out: set[str] = set()
    for op, argument in items:
        if str(op) == "LITERAL":
            out.add(chr(argument))
        elif str(op) == "RANGE" and argument[1] - argument[0] < 12:
            out.update(map(chr, range(argument[0], argument[1] + 1)))
        else:
            return set()
    return out


def _is_rare(part: str) -> bool:
    """A single letter is in every text; a digit, a sign such as $ or a Chinese character is not."""
    return len(part) > 1 or (part != "" and part != " " and not (part.isascii() and part.isalpha()))
