"""The MT-Bench family: question files whose turns are sent one by one, the model's own answers between them.

    {"category": "math", "question_id": 3926104718251337, "turns": ["What is 7 x 8?", "And halved?"]}

Read by Spec-Bench, EAGLE, AngelSlim and NVIDIA's specdec_bench. `question_id` must be an int for the first three: here
it is the first 52 bits of the prompt's id, the same in the whole file and in a domain's. They carry no system turns,
tools or histories, and have one output length for all. All of them load a model themselves: `$DRAFT` is the drafter.
`specdec-bench` is the same content as SPEED-Bench's parquet, whose loader takes every row and string ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from promptkit.exporters.carry import carried, one_length, user_turns
from promptkit.exporters.job import Job, Loss, Piece, lines

if TYPE_CHECKING:
    from promptkit.pack import PackPrompt

DRAFT = '"$DRAFT"'


def mt_bench(job: Job) -> Piece:
    """Return NAME/question.jsonl, as the bench name names it, the command for Spec-Bench and the others' as notes."""
    job, losses = carried(job, replay=True)
    if not job.prompts:
        return Piece({}, "", losses)
    longest, lengths = one_length(job)
    rows = [{"category": p.domain or "", "question_id": number(p), "turns": user_turns(p)} for p in job.prompts]
    n, question_file = str(len(rows)), job.file(f"{job.name}/question.jsonl")
    if several := sum(len(user_turns(p)) > 1 for p in job.prompts):
        note = "AngelSlim sends the first turn only; Spec-Bench, EAGLE and specdec_bench send all"
        losses.append(Loss("later turns (AngelSlim)", several, note))

    def command(checkout: str, data: str, module: str, *options: str) -> str:
        """Copy the questions to where a checkout looks for them by name, and run its module there."""
        copy = job.shell("cp", "-r", job.file(job.name)) + f' "{checkout}/{data}/"'
        run = job.shell("python", "-m", module, "--bench-name", job.name, *options, "--base-model-path", "$MODEL")
        return f'{copy} && cd "{checkout}" && {run} --ea-model-path {DRAFT}'

    angelslim = job.shell(
        "--dataset", question_file, "--num_prompts", n, "--output_len", str(longest), "--max_num_seqs",
        str(job.concurrency), "--target_model", "$MODEL",
    )  # fmt: skip
    return Piece(
        files={f"{job.name}/question.jsonl": lines(rows)},
        command=command(
            "$SPEC_BENCH", "data", "evaluation.inference_eagle3", "--model-id", "pack", "--max-new-tokens", str(longest)
        ),
        losses=losses + lengths,
        ids=[(p.id, str(number(p))) for p in job.prompts],
        notes=[
            "$SPEC_BENCH, $EAGLE, $ANGELSLIM and $SPECDEC_BENCH are checkouts, $DRAFT is the drafter.",
            "EAGLE: "
            + command(
                "$EAGLE",
                "eagle/data",
                "eagle.evaluation.gen_ea_answer_llama3chat",
                "--use_eagle3",
                "--max-new-token",
                str(longest),
            )
            + " (it adds a system turn of its own, sends the first question three times more to warm up, and its Llama"
            " 3 script stops at its own default length whatever is asked for)",
            f'AngelSlim: python "$ANGELSLIM/tools/vllm_spec_benchmark.py" {angelslim} --draft_model {DRAFT}'
            " (80 prompts unless told; no chat template)",
            f"specdec_bench: {_specdec(job, ['--specbench'], question_file, longest)}",
        ],
    )


def specdec_bench(job: Job) -> Piece:
    """Return one parquet file of SPEED-Bench's columns and the command of specdec_bench."""
    import pyarrow as pa

    from promptkit.exporters.tables import parquet

    job, losses = carried(job, replay=True)
    if not job.prompts:
        return Piece({}, "", losses)
    longest, lengths = one_length(job)
    text = pa.string()
    schema = pa.schema(
        {"question_id": text, "category": text, "sub_category": text, "turns": pa.list_(text), "source": text,
         "src_id": text, "difficulty": text, "multiturn": pa.bool_()}
    )  # fmt: skip
    rows: list[dict[str, Any]] = [
        {
            "question_id": p.id, "category": p.domain or "", "sub_category": None, "turns": user_turns(p),
            "source": p.source, "src_id": None, "difficulty": None, "multiturn": len(user_turns(p)) > 1,
        }
        for p in job.prompts
    ]  # fmt: skip
    return Piece(
        files={f"{job.name}.parquet": parquet(rows, schema)},
        command=_specdec(job, ["--dataset", "speed", "--dataset_path"], job.file(f"{job.name}.parquet"), longest),
        losses=losses + lengths,
        ids=[(p.id, p.id) for p in job.prompts],
        notes=[
            "$SPECDEC_BENCH is examples/specdec_bench of NVIDIA's Model-Optimizer, $DRAFT the drafter; --engine VLLM or"
            " SGLANG run on other engines.",
        ],
    )


def number(prompt: PackPrompt) -> int:
    """Return a prompt's id as an int that JSON readers with doubles keep whole: below 2^52."""
    return int(prompt.id[:13], 16)


def _specdec(job: Job, flags: Sequence[str], path: str, longest: int) -> str:
    """Return specdec_bench's command: it takes 80 or 480 rows of question files unless told how many."""
    words = job.shell(
        *flags, path, "--num_requests", str(len(job.prompts)), "--output_length", str(longest),
        "--concurrency", str(job.concurrency), "--tokenizer", "$MODEL", "--model_dir", "$MODEL",
    )  # fmt: skip
    return f'python "$SPECDEC_BENCH/run.py" {words} --draft_model_dir {DRAFT}'
