"""The stages of a timeline, for readers who know no names of threads: what each does, and which takes longest."""

from __future__ import annotations

from collections.abc import Sequence

from diskgnn.loading.tracing import TRAIN_TRACK, TraceEvent

_KINDS = {
    "sample": ("sampl", "relabel", "plan", "inspect"),
    "read": ("read", "disk", "write", "load", "pack"),
    "compute": ("forward", "backward", "step", "optim", "train", "comput", "loss"),
}  # what is none of these moves rows or bytes within memory
_TRACKS = {
    "disk": "disk reads",
    "prepare": "next window",
    "sample": "sampling",
    "load": "loading",
    "read": "reading",
    "inspect": "looking ahead",
    "gather": "fetching rows",
    "assemble": "assembling",
    "transfer": "copy to GPU",
    TRAIN_TRACK: "training",
}  # in the order in which a minibatch passes them
_STAGES = {
    ("disk", "read"): "reading from the disk",
    ("assemble", "header"): "decoding what was read",
    ("assemble", "gather"): "copying rows from the cache in memory",
    ("assemble", "scatter"): "copying rows that were read to their places",
    ("transfer", "copy"): "copying minibatches to the GPU",
    ("prepare", "sample the next window"): "sampling the next window",
    ("prepare", "pack the next window"): "packing the next window",
}


def is_wait(stage: str) -> bool:
    """Whether a stage only waits for another."""
    return stage.startswith("wait")


def kind_of(stage: str) -> str:
    """'sample', 'read', 'move', 'compute' or 'wait': what a stage does, by its name."""
    if is_wait(stage):
        return "wait"
    return next((kind for kind, words in _KINDS.items() if any(word in stage for word in words)), "move")


def track_words(track: str) -> str:
    """What the thread of a track does: 'sample_1' -> 'sampling 2'."""
    name, _, number = track.partition("_")
    words = _TRACKS.get(name, track)
    return f"{words} {int(number) + 1}" if name in _TRACKS and number.isdigit() else words


def track_order(track: str) -> tuple[int, str]:
    """Sorts tracks as a minibatch passes them; unknown ones come before training."""
    known = list(_TRACKS)
    name = track.partition("_")[0]
    return (known.index(name) if name in known else len(known) - 2), track


def stage_words(track: str, stage: str) -> str:
    """What a stage does, in a sentence."""
    return _STAGES.get((track, stage), f"'{stage}' ({track_words(track)})")


def busiest_stage(trace: Sequence[TraceEvent]) -> tuple[str, str, float] | None:
    """(track, stage, share of the traced time) of the loader's stage that took longest, waiting left out.

    Reads that are in flight at the same time count once.
    """
    nanoseconds: dict[tuple[str, str], int] = {}
    until_ns: dict[tuple[str, str], int] = {}
    for event in sorted(trace, key=lambda event: event.start_ns):
        if event.track != TRAIN_TRACK and not is_wait(event.stage):
            key = (event.track, event.stage)
            start_ns = max(event.start_ns, until_ns.get(key, 0))
            nanoseconds[key] = nanoseconds.get(key, 0) + max(0, event.end_ns - start_ns)
            until_ns[key] = max(event.end_ns, start_ns)
    if not nanoseconds:
        return None
    span = max(event.end_ns for event in trace) - min(event.start_ns for event in trace)
    (track, stage), longest = max(nanoseconds.items(), key=lambda item: item[1])
    return track, stage, longest / max(span, 1)
