"""Compare what the datasets library reads of an export with the pack: all prompts, and each domain's configuration.

base/bin/python tests/harness/check_hf_dataset.py EXPORT_DIRECTORY PACK_DIRECTORY
"""

from __future__ import annotations

import json
from tempfile import TemporaryDirectory

import datasets
from compare import arguments, expected, judge

export, pack = (path.resolve() for path in arguments(__doc__))
want = expected(export, pack)


def rows(name: str, cache: str) -> list[dict]:
    """Return a configuration's rows with the nulls of the common schema taken out of the messages."""
    out = []
    for r in datasets.load_dataset(str(export), name, split="test", cache_dir=cache):
        messages = [{k: v for k, v in m.items() if v is not None} for m in r["messages"]]
        out.append({**r, "messages": messages, "tools": r["tools"] and json.loads(r["tools"])})
    return out


with TemporaryDirectory() as cache:
    got = rows("default", cache)
    parts = [
        r for name in datasets.get_dataset_config_names(str(export)) if name != "default" for r in rows(name, cache)
    ]
    saved = datasets.load_dataset(str(export), split="test", cache_dir=cache)
    saved.save_to_disk(f"{cache}/saved")
    assert list(datasets.load_from_disk(f"{cache}/saved")["id"]) == [w["id"] for w in want]
assert sorted(r["id"] for r in parts) == sorted(w["id"] for w in want)
assert all(p["domain"] == next(g["domain"] for g in got if g["id"] == p["id"]) for p in parts)
judge("hf-dataset", got, want, keys=("id", "messages", "tools", "max_tokens"))
