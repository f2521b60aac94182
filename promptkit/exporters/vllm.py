"""vLLM's clients: `vllm bench serve` with three shapes of file, and the multi-turn script of its repository.

    vllm               {"prompt": "...", "output_tokens": 412}                      --dataset-name custom
    vllm-spec-bench    {"question_id": 0, "category": "math", "turns": ["..."]}     --dataset-name spec_bench
    vllm-speed-bench   {"question_id": "9f2c...", "category": "math", "messages": [...]}
    vllm-multi-turn    [{"id": "9f2c...", "messages": [user, assistant, user, assistant]}]

`custom` holds one string a prompt. Where every prompt of the pack is a single user turn it goes to the chat endpoint
as it is, and the server applies its template; a pack with system turns, histories or tools goes to the completions
endpoint as text that promptkit has templated. Both need `--skip-chat-template`: the client would template once more.

Read from vLLM 0.33.0: pandas turns a file of which *every* prompt reads as a number into numbers, and crashes;
without `--no-oversample` rows are repeated up to 1000 requests; rows are shuffled; results come without ids, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from promptkit.exporters.carry import carried, one_length, turn_length, user_turns
from promptkit.exporters.job import Job, Loss, Piece, array, lines, unknown_lengths

if TYPE_CHECKING:
    from promptkit.pack import PackPrompt

CHAT = ("--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--skip-chat-template")
TEXT = ("--backend", "openai", "--endpoint", "/v1/completions", "--skip-chat-template")
CLIENT_TEMPLATE = ("--backend", "openai", "--endpoint", "/v1/completions")
ONCE = ("--num-prompts", "-1", "--no-oversample", "--disable-shuffle", "--save-result", "--save-detailed")


def vllm(job: Job) -> Piece:
    """Return NAME.jsonl for `--dataset-name custom`: plain prompts, or templated text where the pack needs it."""
    why_not = job.unwritable()
    plain = [p for p in job.prompts if is_plain(p)]
    numbers = bool(plain) and all(_is_number(p.messages[0]["content"]) for p in plain)
    if why_not is None and (numbers or not all(is_plain(p) for p in job.pack or job.prompts)):
        job, losses = carried(job, system=True, history=True, tools=True)
        texts, inexact = templated(job)
        note = f"The text is templated as {job.template}: serve a model of that template."
        return _custom(job, texts, TEXT, losses + inexact, note)
    losses = []
    if other := len(job.prompts) - len(plain):
        note = f"left out: they need templated text, but {why_not}; name one with --template, or use sglang or aiperf"
        losses.append(Loss("system turn, history or tools", other, note))
    if numbers:
        note = "left out: vLLM crashes on a file of nothing but numbers; give --template, or use sglang"
        losses.append(Loss("only numbers in the file", len(plain), note))
        plain = []
    job = job.of(plain)
    texts = [p.messages[0]["content"] for p in plain]
    return _custom(job, texts, CHAT, losses + unknown_lengths(job), "The server applies its chat template.")


def _custom(job: Job, texts: list[str], endpoint: tuple[str, ...], losses: list[Loss], note: str) -> Piece:
    name = f"{job.name}.jsonl"
    rows = [{"prompt": t, "output_tokens": job.length(p)} for t, p in zip(texts, job.prompts, strict=True)]
    return Piece(
        files={name: lines(rows)} if rows else {},
        command=_serve(job, endpoint, "custom", job.file(name), "--custom-output-len", "-1"),
        losses=losses,
        ids=[(p.id, str(i)) for i, p in enumerate(job.prompts)],
        notes=[note],
    )


def vllm_spec_bench(job: Job) -> Piece:
    """Return NAME.jsonl for `--dataset-name spec_bench`: single user turns, one output length for all."""
    job, losses = carried(job)
    if not job.prompts:
        return Piece({}, "", losses)
    longest, lengths = one_length(job)
    rows = [
        {"question_id": i, "category": p.domain or "", "turns": [p.messages[0]["content"]]}
        for i, p in enumerate(job.prompts)
    ]
    name = f"{job.name}.jsonl"
    return Piece(
        files={name: lines(rows)},
        command=_serve(job, CLIENT_TEMPLATE, "spec_bench", job.file(name), "--spec-bench-output-len", str(longest)),
        losses=losses + lengths,
        ids=[(p.id, str(i)) for i, p in enumerate(job.prompts)],
        notes=["vLLM's client applies the chat template of its tokenizer.", "One domain: --spec-bench-category DOMAIN"],
    )


def vllm_speed_bench(job: Job) -> Piece:
    """Return qualitative.jsonl for `--dataset-name speed_bench`: single user turns, one output length."""
    job, losses = carried(job)
    if not job.prompts:
        return Piece({}, "", losses)
    longest, lengths = one_length(job)
    rows = [{"question_id": p.id, "category": p.domain or "", "messages": p.messages} for p in job.prompts]
    return Piece(
        files={"qualitative.jsonl": lines(rows)},
        command=_serve(job, CHAT, "speed_bench", job.directory, "--speed-bench-output-len", str(longest)),
        losses=losses + lengths,
        ids=[(p.id, str(i)) for i, p in enumerate(job.prompts)],
        notes=["The server applies its chat template.", "One domain: --speed-bench-category DOMAIN"],
    )


def vllm_multi_turn(job: Job) -> Piece:
    """Return NAME.json for the multi-turn script: user turns with live answers between them.

    The script takes each turn's output length from the recorded answer, in tokens of its own tokenizer. A pack has no
    answers: with `tokenizer` filler of that length stands in (it is never sent), else one limit holds for all turns.
    """
    job, losses = carried(job, replay=True)
    if not job.prompts:
        return Piece({}, "", losses)
    filler = _filler(job)
    limits: list[str] = []
    if filler is None:
        longest, lengths = one_length(job)
        losses = losses + lengths
        limits = ["--limit-min-tokens", "1", "--limit-max-tokens", str(longest)]
    rows = []
    for p in job.prompts:
        answer = filler[turn_length(job, p)] if filler else ""
        turns = [({"role": "user", "content": t}, {"role": "assistant", "content": answer}) for t in user_turns(p)]
        rows.append({"id": p.id, "messages": [m for turn in turns for m in turn]})
    name, script = f"{job.name}.json", "vllm/benchmarks/multi_turn/benchmark_serving_multi_turn.py"
    return Piece(
        files={name: array(rows)},
        command=job.shell(
            "python", script, "--input-file", job.file(name), "--model", "$MODEL", "--url", "$BASE_URL",
            "--num-clients", str(min(job.concurrency, len(rows))), "--no-early-stop", *limits,
            "--stats-json-output", f"{job.name}.vllm-multi-turn.json",
        ),
        losses=losses,
        ids=[(p.id, p.id) for p in job.prompts],
        notes=["vllm/ is a checkout of vLLM's repository: the script is not in the package.",
               "The server applies its chat template."],
    )  # fmt: skip


def is_plain(prompt: PackPrompt) -> bool:
    """Say whether a prompt is one user turn and nothing else, so that a target that takes a string carries it whole."""
    return len(prompt.messages) == 1 and prompt.messages[0]["role"] == "user" and not prompt.tools


def templated(job: Job) -> tuple[list[str], list[Loss]]:
    """Return the prompts as the job's chat template renders them, and what is not exact about that."""
    losses = []
    if n := sum(bool(p.tools) for p in job.prompts):
        note = f"written as {job.template} declares them; where your server's template differs, use sglang or aiperf"
        losses.append(Loss("tool declarations", n, note))
    if n := sum(any(m.get("reasoning") for m in p.messages) for p in job.prompts):
        losses.append(Loss("reasoning of earlier turns", n, f"kept or left out as {job.template} does"))
    return [job.text(p) for p in job.prompts], losses


def _is_number(text: str) -> bool:
    """Say whether pandas would take a text for a number; it does so for a column where every text is one."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _serve(job: Job, endpoint: tuple[str, ...], dataset: str, path: str, *length: str) -> str:
    tokenizer = ["--tokenizer", job.tokenizer_path] if job.tokenizer_path else []
    return job.shell(
        "vllm", "bench", "serve", *endpoint, "--base-url", "$BASE_URL", "--model", "$MODEL", *tokenizer,
        "--dataset-name", dataset, "--dataset-path", path, *length, *ONCE, "--max-concurrency", str(job.concurrency),
    )  # fmt: skip


def _filler(job: Job) -> dict[int, str] | None:
    """Return length -> text of exactly so many tokens, None without a tokenizer or where it has no such text."""
    if job.tokenizer is None:
        return None
    lengths = sorted({turn_length(job, p) for p in job.prompts})
    for word in (" a", " the", " 1,", "\n."):
        found = {n: (word * n) for n in lengths}
        if all(len(job.tokenizer.encode(t)) == n for n, t in found.items()):
            return found
    return None
