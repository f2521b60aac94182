"""Compare what SGLang's frontend makes of the SpecForge plug-in of an export with the pack.

    sglang/bin/python tests/harness/check_specforge.py EXPORT_DIRECTORY PACK_DIRECTORY

SpecForge is no package: the two modules of it that a plug-in imports are stood in for, as it calls them.
"""

from __future__ import annotations

import json
import runpy
import sys
import types
from importlib import import_module
from importlib.util import find_spec

from compare import arguments, expected, jsonl, judge, words

# The frontend alone: importing the package imports GPU kernels, which a machine without one may lack.
(where,) = find_spec("sglang").submodule_search_locations
sys.modules["sglang"] = types.ModuleType("sglang")
sys.modules["sglang"].__path__ = [where]
api = import_module("sglang.lang.api")
sys.modules["sglang"].__dict__.update({n: getattr(api, n) for n in ("function", "system", "user", "assistant", "gen")})
BaseBackend = import_module("sglang.lang.backend.base_backend").BaseBackend
ChatTemplate = import_module("sglang.lang.chat_template").ChatTemplate
MARKED = {
    role: (f"\0{role}\1", "\2") for role in ("system", "user", "assistant")
}  # so that the text can be taken apart


class Benchmarker:
    """What SpecForge's base class has that a plug-in uses."""

    def __init__(self, num_samples=None, subset=None):
        self.num_samples, self.subset = num_samples, subset


class Registry:
    def __init__(self):
        self.benchmarks = {}

    def register(self, name):
        return lambda cls: self.benchmarks.setdefault(name, cls)


class Recorder(BaseBackend):
    """Answers "ok" and writes down the messages and the length of each generation."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def get_chat_template(self):
        return ChatTemplate("marked", None, MARKED)

    def generate(self, s, sampling_params):
        *turns, opened = s.text_.split("\2")
        assert opened == MARKED["assistant"][0], opened
        said = [dict(zip(("role", "content"), turn.removeprefix("\0").split("\1"), strict=True)) for turn in turns]
        self.calls.append((said, sampling_params.max_new_tokens))
        return "ok", {"completion_tokens": 1}


registry = Registry()
for name, members in {
    "benchmarker": {}, "benchmarker.base": {"Benchmarker": Benchmarker}, "benchmarker.registry": {"BENCHMARKS": registry}
}.items():  # fmt: skip
    module = sys.modules[name] = types.ModuleType(name)
    module.__dict__.update(members)

export, pack = (path.resolve() for path in arguments(__doc__))
command = words(export)
plugin = next(w for w in command if w.endswith(".py")).rpartition("/")[2]
names = command[command.index("--benchmark-list") + 1 :]
runpy.run_path(str(export / plugin), run_name="plugin")
assert sorted(registry.benchmarks) == sorted(names)
want = expected(export, pack)
reported = {r["reported"]: r["id"] for r in jsonl(export / "ids.jsonl")}
by_id = {w["id"]: w for w in want}
recipe = json.loads((pack / "pack.json").read_bytes())["recipe"] or {}
got, wanted = [], []
for name in names:
    benchmarker = registry.benchmarks[name]()
    questions, labels = benchmarker.load_data()
    assert len(questions) == len(labels)
    recorder = Recorder()
    states = benchmarker.create_sgl_function().run_batch(
        questions, temperature=0, max_new_tokens=1, num_threads=1, backend=recorder
    )
    keys = benchmarker.get_answer_keys()
    assert all(state[key] == "ok" for state in states for key in keys)
    got += [{"messages": [m for m in said if m["role"] != "assistant"], "max_tokens": n} for said, n in recorder.calls]
    for i in range(len(questions)):
        w = by_id[reported[f"{name}:{i}"]]
        users = [k for k, m in enumerate(w["messages"]) if m["role"] == "user"]
        share = -(-w["max_tokens"] // len(users))
        wanted += [{"id": w["id"], "messages": w["messages"][: k + 1], "max_tokens": share} for k in users]
assert len(reported) == len(want)
judge("specforge", got, wanted)
