"""Compare what AIPerf's own loader makes of an export, as the printed command tells it, with the pack.

aiperf/bin/python tests/harness/check_aiperf.py EXPORT_DIRECTORY PACK_DIRECTORY
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiperf.cli_runner
import byte_tokenizer
from aiperf.cli import app
from aiperf.common import random_generator
from aiperf.common.tokenizer import Tokenizer
from aiperf.dataset.composer.custom import CustomDatasetComposer
from compare import arguments, expected, judge, turns, words

export, pack = arguments(__doc__)
plans: list[Any] = []
aiperf.cli_runner.run_benchmark = plans.append  # the plan that the command's arguments make
app(words(export)[1:], result_action="return_value")
random_generator.init(0)
run = aiperf.cli_runner._make_benchmark_run(plans[0].configs[0], random_seed=0)
with TemporaryDirectory() as folder:
    tokenizer = Tokenizer.from_pretrained(str(byte_tokenizer.write(Path(folder))), resolve_alias=False)
    conversations = CustomDatasetComposer(run=run, tokenizer=tokenizer).create_dataset()
got: list[dict[str, Any]] = []
for conversation in conversations:
    system = [{"role": "system", "content": conversation.system_message}] if conversation.system_message else []
    for turn in conversation.turns:
        text = "".join(content for t in turn.texts for content in t.contents)
        messages = turn.raw_messages or [*system, {"role": turn.role or "user", "content": text}]
        tools = turn.raw_tools or (turn.extra_body or {}).get("tools")
        row = {"id": conversation.session_id, "messages": messages, "tools": tools, "max_tokens": turn.max_tokens}
        got.append(row)
        system = []
judge("aiperf", got, turns(expected(export, pack), pack), keys=("id", "messages", "tools", "max_tokens"))
