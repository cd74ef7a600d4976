"""How many starts a study needs, for `tuner check`: from the noise of earlier studies, else for several noises."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tuner.core.study_file import StudyFile

USUAL_NOISES = (0.005, 0.01, 0.02)  # of a paired start ratio, where nothing like the study was confirmed before


def noise_documents(parts: Sequence[StudyFile], db: str | None) -> list[dict[str, Any]]:
    """One for each part; empty for what confirms nothing."""
    if parts[0].evaluator in ("predicted", "recorded"):
        return [{} for _ in parts]
    from tuner.app.wiring import connected_if_there
    from tuner.core.noise import pair_noise

    with connected_if_there(db) as studies:
        known = [pair_noise(studies, part) if studies is not None else None for part in parts]
    return [
        _document(part, USUAL_NOISES, None)
        if noise is None
        else _document(part, (noise.spread,), {"pairs": noise.pairs, "studies": noise.studies})
        for part, noise in zip(parts, known, strict=True)
    ]


def _document(file: StudyFile, noises: Sequence[float], told_by: dict[str, int] | None) -> dict[str, Any]:
    from tuner.core.noise import starts_by_gain

    rows = [
        {"pair_noise": noise, "starts": {f"{gain:g}": starts for gain, starts in starts_by_gain(file, noise).items()}}
        for noise in noises
    ]
    return {"starts_needed": {"asked": file.confirm.starts_a_side, "known_from": told_by, "by_noise": rows}}


def print_noise(console: Console, document: dict[str, Any]) -> None:
    if not document:
        return
    needed = document["starts_needed"]
    told_by = needed["known_from"]
    source = (
        "not known here yet: no study like this one was confirmed before"
        if told_by is None
        else f"from {told_by['pairs']} pairs of starts of earlier studies like this one ({told_by['studies']})"
    )
    console.print(f"noise of a paired start ratio: {source}")
    console.print(f"starts a side that validate 8 of 10 true gains (the file asks for {needed['asked']}):")
    gains = list(needed["by_noise"][0]["starts"])
    table = Table("noise", *(f"+{float(gain):.0%}" for gain in gains), box=None, pad_edge=False)
    for row in needed["by_noise"]:
        counts = ("more than 50" if row["starts"][gain] is None else str(row["starts"][gain]) for gain in gains)
        table.add_row(f"{row['pair_noise']:.2%}", *counts)
    console.print(table, soft_wrap=False)
