"""Compare what GuideLLM's own loader makes of an export, as the printed command tells it, with the pack.

guidellm/bin/python tests/harness/check_guidellm.py EXPORT_DIRECTORY PACK_DIRECTORY
"""

from __future__ import annotations

from typing import Any

import guidellm.entrypoints
from compare import arguments, expected, judge, turns, words
from guidellm.benchmark.entrypoints import resolve_to_single_benchmark
from guidellm.cli import cli
from guidellm.data import create_data_loader

export, pack = arguments(__doc__)
got: list[dict[str, Any]] = []


async def load(args: Any, **_: Any) -> None:
    """Read the data as a benchmark does, and keep the requests instead of sending them."""
    given = resolve_to_single_benchmark(args.get_benchmarks())
    loader = await create_data_loader(
        loader_config=given.data_loader,
        data_config=given.data,
        tokenizer_config=given.tokenizer,
        column_mapper_config=given.data_column_mapper,
        preprocessors_config=given.data_preprocessors,
        finalizer_config=given.data_finalizer,
        random_seed=given.seed.value,
    )
    for graph in loader:
        for node in graph.nodes.values():
            columns = node.request.columns
            got.append(
                {
                    "id": graph.graph_id,
                    "messages": [m for messages in columns.get("raw_messages_column", []) for m in messages],
                    "tools": next(iter(columns.get("tools_column") or []), None),
                    "max_tokens": node.request.output_metrics.text_tokens,
                }
            )


guidellm.entrypoints.benchmark_generative_text = load
cli(words(export)[1:], standalone_mode=False)
judge("guidellm", got, turns(expected(export, pack), pack), keys=("id", "messages", "tools", "max_tokens"))
