"""Compare what evalscope perf makes of an export with the pack: its own dataset plugin and request bodies.

evalscope/bin/python tests/harness/check_evalscope.py EXPORT_DIRECTORY PACK_DIRECTORY
"""

from __future__ import annotations

import sys

from compare import arguments, expected, judge, words
from evalscope.perf.arguments import Arguments, parse_args
from evalscope.perf.plugin.registry import ApiRegistry, DatasetRegistry

export, pack = (path.resolve() for path in arguments(__doc__))
command = words(export)
command = command[command.index("perf") + 1 :]
path = command.index("--dataset-path") + 1
command[path] = str(export / command[path].rpartition("/")[2])
sys.argv = ["evalscope perf", *command]
given = parse_args()
settings = given if isinstance(given, Arguments) else Arguments.from_args(given)
want = expected(export, pack)
number = settings.number if isinstance(settings.number, int) else settings.number[0]
assert number == len(want), f"--number {number}, {len(want)} prompts"
dataset = DatasetRegistry.get_class(settings.dataset)(settings)
api = ApiRegistry.get_class(settings.api)(settings)
bodies = [api.build_request(messages, settings) for messages in dataset.build_messages()]
got = [{"messages": b["messages"], "tools": b.get("tools"), "max_tokens": b["max_tokens"]} for b in bodies]
assert all(b.get("ignore_eos") is None and b.get("min_tokens") is None for b in bodies)
judge("evalscope", got, want, keys=("messages", "tools", "max_tokens"))
