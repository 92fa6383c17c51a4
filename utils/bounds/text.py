"""A diagnosis as text for people, and as JSON for programs."""

import json
from typing import Any

from utils.bounds.owners import label
from utils.bounds.verdict import Diagnosis, warnings_about

HOST = {
    **{"loader": "loader", "blocked": "blocked", "nothing": "nothing"},
    "operators": "operators and calls",
}


def report(found: Diagnosis) -> str:
    """Return a diagnosis with its evidence and the next step, as the command prints it."""
    seen = found.evidence
    shares = sorted(seen.shares.items(), key=lambda item: -item[1])
    lines = [
        str(found),
        "owners of the step: "
        + "; ".join(f"{label(owner)} {share:.1%}" for owner, share in shares if share >= 0.0005),
        "host: " + ", ".join(f"{HOST[state]} {part:.1%}" for state, part in seen.host.items()),
        f"GPU: computes {seen.busy:.1%}, only NCCL {seen.exposed_nccl:.1%}, only copies "
        f"{seen.exposed_copies:.1%}; {seen.kernels:.0f} kernels a step, {seen.kernel:.1f} µs each",
        f"kernels: {seen.products:.1%} in products; {seen.of_peak:.1%} of the peak where that is "
        f"the roof, {seen.of_bandwidth:.1%} of the bandwidth where that is",
    ]
    lines += [f"warning: {text}" for text in warnings_about(seen)]
    return "\n".join([*lines, f"next: {found.next}"])


def as_json(found: Diagnosis) -> str:
    """Return the same as one JSON object on one line."""
    seen = found.evidence
    evidence = {name: of for name, of in vars(seen).items() if name not in ("shares", "notes")}
    said: dict[str, Any] = {"bound": found.bound, "reason": found.reason, "shares": seen.shares}
    said |= {"evidence": evidence, "warnings": warnings_about(seen), "next": found.next}
    return json.dumps(said, ensure_ascii=False, allow_nan=False)
