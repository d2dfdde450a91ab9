"""A packed directory that is being made."""

from __future__ import annotations

from dataclasses import dataclass

from diskgnn._native import PageWriter
from diskgnn.files.traffic import Traffic
from diskgnn.system.resources import Resources
from diskgnn.work.runner import Scratch, Work
from diskgnn.work.writer import ArtifactWriter

STAGE = "pack"  # whose steps place and pack


@dataclass(frozen=True)
class PackFolder:
    """A packed directory that is being made, and what making it may spend."""

    work: Work
    writer: ArtifactWriter
    pages: PageWriter  # writes extents, and what cpu tiers start with
    tails: Scratch  # gets a page of each extent: the last one, which is not full yet
    resources: Resources  # what `packing_need` leaves
    traffic: Traffic  # what is read
