"""The stages and tracks of a timeline, for readers who know no names of threads."""

from __future__ import annotations

from diskgnn.loading.tracing import TRAIN_TRACK

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


def is_wait(stage: str) -> bool:
    """Returns True if a stage only waits for another."""
    return stage.startswith("wait")


def kind_of(stage: str) -> str:
    """Returns 'sample', 'read', 'move', 'compute' or 'wait': what a stage does, by its name."""
    if is_wait(stage):
        return "wait"
    return next((kind for kind, words in _KINDS.items() if any(word in stage for word in words)), "move")


def track_words(track: str) -> str:
    """Returns what the thread of a track does: 'sample_1' -> 'sampling 2'."""
    name, _, number = track.partition("_")
    words = _TRACKS.get(name, track)
    return f"{words} {int(number) + 1}" if name in _TRACKS and number.isdigit() else words


def track_order(track: str) -> tuple[int, str]:
    """Sorts tracks as a minibatch passes them; unknown ones come before training."""
    known = list(_TRACKS)
    name = track.partition("_")[0]
    return (known.index(name) if name in known else len(known) - 2), track
