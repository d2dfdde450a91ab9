"""The score by which the best epoch is chosen. Without torch, so that `compare` can say it, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from diskgnn.errors import ConfigError

_SCORES = {
    "class": ("accuracy",), "multilabel": ("average_precision", "roc_auc", "micro_f1"),
    "regression": ("mae", "rmse", "r2"), "link": ("mrr", "hits@1", "hits@3", "hits@10"),
}  # fmt: skip
_OF_TWO_CLASSES = ("average_precision", "roc_auc")
_LOWER_IS_BETTER = ("mae", "rmse")
LOSS = "loss"


@dataclass(frozen=True)
class Criterion:
    """Names a score of the validation split."""

    name: str
    higher_is_better: bool = True
    is_required: bool = False  # an evaluation without it is an error

    @staticmethod
    def of(metrics: Mapping[str, bool], best_by: str | None = None, *, is_required: bool = False) -> Criterion:
        """Finds the one of this name among a task's `metrics` and the loss; their first by default.

        Raises:
            ConfigError: there is none of that name.
        """
        choices = {**metrics, LOSS: False}
        name = next(iter(metrics)) if best_by is None else best_by
        if name not in choices:
            raise ConfigError(f"best_by: expected one of {', '.join(choices)}, the scores of this task; found {name!r}")
        return Criterion(name, choices[name], is_required)

    def is_better(self, score: float, than: float | None) -> bool:
        """Returns True if `score` beats another one; every score beats none, and a number beats what is no number."""
        if than is None or math.isnan(than):
            return than is None or not math.isnan(score)
        return score > than if self.higher_is_better else score < than


def metrics_of(target_kind: str, num_outputs: int) -> dict[str, bool]:
    """Returns the scores of a task over seeds of a `SourceSchema.target_kind`, and for each, whether a higher one is
    better.

    The first is the one by which the best epoch is chosen unless another is asked for.
    """
    names = _SCORES[target_kind] + (_OF_TWO_CLASSES if target_kind == "class" and num_outputs == 2 else ())
    return {name: name not in _LOWER_IS_BETTER for name in names}


def require_classes_of(best_by: str, target_kind: str, classes: Callable[[], set[int]]) -> None:
    """Refuse a score that tells two classes apart where all seeds of the validation split are of one.

    Args:
        best_by: the name of the score.
        target_kind: what labels are, see `SourceSchema`.
        classes: finds those of the split's seeds; called only if the score needs two.

    Raises:
        ConfigError: it is known before training that no evaluation can have this score.
    """
    if target_kind == "class" and best_by in _OF_TWO_CLASSES and len(found := classes()) < 2:
        raise ConfigError(
            f"best_by: {best_by} needs seeds of both classes in the valid split, found only {sorted(found)}. Choose "
            f"another score, such as best_by='accuracy', or other seeds"
        )
