"""Benchmark LLM inference with prompts that represent the training data, and prove it.

    import promptkit
    built = promptkit.build("/data/eagle3/synth_100k")        # reference + pack + report
    score = promptkit.score("prompts.yaml", built.reference)  # does this benchmark look like the mix?
    for prompt in promptkit.load_pack(built.pack):            # inside any other benchmark
        print(prompt.id, prompt.domain, prompt.messages)

Importing defines names and nothing else; what takes time is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from promptkit.candidates import read_candidates as read_candidates
    from promptkit.conversation import Conversation as Conversation
    from promptkit.conversation import Prompt as Prompt
    from promptkit.errors import PromptkitError as PromptkitError
    from promptkit.exporters import export as export
    from promptkit.pack import Pack as Pack
    from promptkit.pack import load_pack as load_pack
    from promptkit.pack import verify as verify
    from promptkit.pipeline import build as build
    from promptkit.pipeline import detokenize as detokenize
    from promptkit.pipeline import inspect as inspect
    from promptkit.reference import Reference as Reference
    from promptkit.reference import load_reference as load_reference
    from promptkit.reweighting import Reweighted as Reweighted
    from promptkit.reweighting import reweight as reweight
    from promptkit.scoring import Score as Score
    from promptkit.scoring import score as score

__version__ = "0.1.0"

_WHERE = {
    "Conversation": "conversation",
    "Pack": "pack",
    "Prompt": "conversation",
    "PromptkitError": "errors",
    "Reference": "reference",
    "Reweighted": "reweighting",
    "Score": "scoring",
    "build": "pipeline",
    "detokenize": "pipeline",
    "export": "exporters",
    "inspect": "pipeline",
    "load_pack": "pack",
    "load_reference": "reference",
    "read_candidates": "candidates",
    "reweight": "reweighting",
    "score": "scoring",
    "verify": "pack",
}

__all__ = [
    "Conversation",
    "Pack",
    "Prompt",
    "PromptkitError",
    "Reference",
    "Reweighted",
    "Score",
    "__version__",
    "build",
    "detokenize",
    "export",
    "inspect",
    "load_pack",
    "load_reference",
    "read_candidates",
    "reweight",
    "score",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'promptkit' has no attribute {name!r}")
    value = getattr(import_module(f"promptkit.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
