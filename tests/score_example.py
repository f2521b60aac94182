"""A score as `score --json` prints it, with hostile texts; what the command and the report are tested on."""

from __future__ import annotations

import copy
from typing import Any

HOSTILE = (
    '<script>alert("x")</script> \x1b[2J\x07 \u202eevil\u202c [/bold] [red]{{7*7}} </style> café 日本語 '
    + "long " * 400
)

TEXTS = [
    "Explain the theory of general relativity in depth.",
    HOSTILE,
    "Write a function that inserts a key into a B-tree.",
    "Fix the failing test in tests/test_parser.py.",
]


def _prompt(index: int, typicality: float, domain: str, **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "index": index, "id": f"{index:032x}", "typicality": typicality, "belongs": typicality >= 0.05,
        "cross_entropy": 9.5 - 4 * typicality, "closeness": 0.1 + 0.5 * typicality, "domain": domain, "cluster": index,
        "nearest_similarity": 0.4, "n_tokens": 10, "length_percentile": 0.01, "outliers": [], "influence": 0.1, "leaked": False, "leak": None,
        "nearest": [{"similarity": 0.4, "text": "Implement a B-tree in Python.\nWith tests.", "source": "B1_glaive"}],
    }  # fmt: skip
    return {**row, **more}


_SCORE: dict[str, Any] = {
    "verdict": "Not representative of the training mix: 2 of 4 prompts do not belong, and most of the mix is missing.",
    "verdict_code": "no",
    "representative": False,
    "n": 4,
    "n_effective": 4.0,
    "distance": 0.612, "noise_floor": 0.34, "ratio": 1.8, "excess": 0.231, "p_value": 0.0005, "p_fidelity": 0.0005, "p_mix": 0.021,
    "fidelity": 0.526, "coverage": 0.31, "mix_overlap": 0.22, "domain_overlap": 0.4,
    "typicality": 0.27, "cross_entropy": 8.2, "closeness": 0.21,
    "intervals": {"fidelity": [0.16, 0.93], "coverage": [0.1, 0.5], "excess": [0.12, 0.33], "noise_floor": [0.29, 0.4]},
    "power": [{"n": 4, "change": "10 % foreign prompts", "power": 0.12}, {"n": 4, "change": "all foreign", "power": 0.99}],
    "equivalence": {"margin": 0.1, "p_value": 0.99, "n_needed": None},
    "advice": "more prompts like these will not bring the set within 0.10 of the mix: its excess is above 0.10",
    "structure": [
        {"what": "median tokens", "reference": 212.0, "candidates": 11.0, "p_value": 0.003},
        {"what": "several user turns", "reference": 0.2, "candidates": 0.0, "p_value": 0.4},
        {"what": "tools", "reference": 0.75, "candidates": 0.0, "p_value": 0.01},
    ],
    "domains": [
        {"domain": "coding", "reference_share": 0.61, "candidate_share": 0.25, "p_value": 0.3},
        {"domain": "agentic", "reference_share": 0.39, "candidate_share": 0.25, "p_value": 0.9},
        {"domain": "encyclopedic", "reference_share": 0.0, "candidate_share": 0.5, "p_value": 0.0001},
    ],
    "clusters": [
        {"cluster": 0, "name": "pandas, dataframe, column", "domain": "coding", "reference_share": 0.3, "candidate_share": 0.0, "p_value": 0.5},
        {"cluster": 1, "name": "<b>repo</b>, issue, patch", "domain": "agentic", "reference_share": 0.7, "candidate_share": 1.0, "p_value": 0.5},
    ],
    "missing": [
        {"cluster": 0, "name": "pandas, dataframe, column", "domain": "coding", "reference_share": 0.3, "candidate_share": 0.0,
         "examples": ["Group a dataframe by two columns and sum the rest.", HOSTILE]},
    ],
    "prompts": [_prompt(0, 0.001, "encyclopedic"), _prompt(1, 0.02, "encyclopedic", outliers=["2,004 tokens, longer than 99.9 % of the mix"]), _prompt(2, 0.44, "coding", leaked=True, leak={"kind": "near", "share": 0.9}), _prompt(3, 0.8, "agentic")],
    "responses": None,
    "reference": {"path": "promptkit-out/reference", "fingerprint": "ab" * 32},
    "seed": 0,
    "promptkit_version": "0.1.0",
}  # fmt: skip


def score_json(**changes: Any) -> dict[str, Any]:
    """Return a fresh copy with the given keys changed."""
    return {**copy.deepcopy(_SCORE), **changes}
