"""SpecForge: a benchmark for its bench_eagle3.py, which takes no files, as a module that registers itself and runs it.

    {"category": "math", "lengths": [412], "question_id": "9f2c...", "system": null, "turns": ["What is 7 x 8?"]}

The module runs against a server that is up ($BASE_URL); $SPECFORGE is a checkout of SpecForge. SpecForge reads one
answer per key from every row, so prompts with the same number of turns make one benchmark. SGLang's frontend
templates the turns and knows few models' templates; it has none for tools or tool turns.
"""

from __future__ import annotations

import json
from collections import Counter

from promptkit.exporters.carry import carried, shared_lengths, system_text, turn_length, user_turns
from promptkit.exporters.job import Job, Loss, Piece, lines

MODULE = '''\
"""Prompts of a promptkit pack as benchmarks of SpecForge. Written by `promptkit export`; QUESTIONS lies beside it.

Needs SpecForge's benchmarks directory on PYTHONPATH and BASE_URL in the environment; other options are bench_eagle3's.
"""

import json
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import sglang as sgl
from benchmarker.base import Benchmarker
from benchmarker.registry import BENCHMARKS

try:
    from sglang.lang.global_config import global_config
except ImportError:  # until 0.5.2
    from sglang.global_config import global_config

global_config.enable_precache_with_tracing = False  # it would run a prompt of placeholders first

NAME = @NAME@
QUESTIONS = [json.loads(line) for line in Path(__file__).with_name(@FILE@).open(encoding="ascii")]


def name(turns):
    return NAME if turns == 1 else f"{NAME}-{turns}-turns"


@sgl.function
def converse(s, system, turns, lengths):
    if system is not None:
        s += sgl.system(system)
    for i, (turn, length) in enumerate(zip(turns, lengths), start=1):
        s += sgl.user(turn)
        s += sgl.assistant(sgl.gen(f"answer_{i}", max_tokens=length))


def benchmarker(turns):
    class PackBenchmarker(Benchmarker):
        """All prompts of this many turns, or with a subset (NAME:COUNT:DOMAIN,...) those of the domains."""

        def load_data(self):
            rows = [q for q in QUESTIONS if len(q["turns"]) == turns]
            rows = [q for q in rows if self.subset is None or q["category"] in self.subset][: self.num_samples]
            return [{k: q[k] for k in ("system", "turns", "lengths")} for q in rows], [None] * len(rows)

        def create_sgl_function(self):
            return converse

        def get_answer_keys(self):
            return [f"answer_{i}" for i in range(1, turns + 1)]

    return PackBenchmarker


for turns in sorted({len(q["turns"]) for q in QUESTIONS}):
    BENCHMARKS.register(name(turns))(benchmarker(turns))

if __name__ == "__main__":
    server = urlsplit(os.environ["BASE_URL"])
    sys.argv += ["--host", server.hostname, "--port", str(server.port or 80), "--skip-launch-server"]
    import bench_eagle3

    bench_eagle3.main()
'''


def specforge(job: Job) -> Piece:
    """Return NAME.jsonl, the questions, pack_NAME.py, the plug-in, and the command that runs it."""
    job, losses = carried(job, system=True, replay=True)
    if not job.prompts:
        return Piece({}, "", losses)
    rows = [
        {
            "category": p.domain or "", "question_id": p.id, "system": system_text(p), "turns": user_turns(p),
            "lengths": [turn_length(job, p)] * len(user_turns(p)),
        }
        for p in job.prompts
    ]  # fmt: skip
    losses += shared_lengths(job)
    by_turns = sorted({len(user_turns(p)) for p in job.prompts})
    if len(by_turns) > 1:
        note = "one benchmark per number of turns, each in the pack's order"
        losses.append(Loss("order of sending", len(rows), note))
    module = MODULE.replace("@NAME@", json.dumps(job.name)).replace("@FILE@", json.dumps(f"{job.name}.jsonl"))
    names = {n: job.name if n == 1 else f"{job.name}-{n}-turns" for n in by_turns}
    seen: Counter[int] = Counter()
    ids = []
    for p in job.prompts:
        turns = len(user_turns(p))
        ids.append((p.id, f"{names[turns]}:{seen[turns]}"))
        seen[turns] += 1
    run = job.shell(
        "python", job.file(f"pack_{job.name}.py"), "--model-path", "$MODEL",
        "--config-list", f"{job.concurrency},0,0,0", "--benchmark-list", *names.values(),
    )  # fmt: skip
    return Piece(
        files={f"{job.name}.jsonl": lines(rows), f"pack_{job.name}.py": module.encode()},
        command=f'PYTHONPATH="$SPECFORGE/benchmarks" BASE_URL={job.shell("$BASE_URL")} {run}',
        losses=losses,
        ids=ids,
        notes=[
            "$SPECFORGE is a checkout of SpecForge. Generations are reported by index within a benchmark.",
            "NAME:COUNT:DOMAIN in --benchmark-list runs one domain, at most COUNT prompts.",
        ],
    )
