"""The score that a comparison tells of each loader: its name, which way is better, and how it is written."""

from __future__ import annotations

from dataclasses import dataclass

from diskgnn.errors import ConfigError
from diskgnn.specs.schema import SourceSchema
from diskgnn.training.criterion import LOSS, Criterion, metrics_of

_TITLES = {
    "accuracy": "Accuracy", "mrr": "MRR", "mae": "Mean absolute error", "average_precision": "Average precision",
    "roc_auc": "ROC AUC", "micro_f1": "Micro F1", "rmse": "Root mean squared error", "r2": "R²",
}  # fmt: skip


@dataclass(frozen=True)
class Metric:
    """A score by which epochs are chosen: that of the task."""

    name: str = "accuracy"
    higher_is_better: bool = True

    @staticmethod
    def of(schema: SourceSchema, best_by: str | None = None) -> Metric:
        """Returns the one by which the task of minibatches of `schema` chooses epochs; or another of its scores, by
        name.

        Raises:
            ConfigError: the task has no such score.
        """
        metrics = metrics_of(schema.target_kind, schema.num_outputs)
        if best_by == LOSS:
            raise ConfigError(f"best_by: expected one of {', '.join(metrics)}, which are compared; found {LOSS!r}")
        criterion = Criterion.of(metrics, best_by)
        return Metric(criterion.name, criterion.higher_is_better)

    @property
    def title(self) -> str:
        """Returns its name as a heading."""
        return _TITLES.get(self.name, self.name)

    @property
    def words(self) -> str:
        """Returns its name within a sentence."""
        return self.title if self.title.isupper() else self.title.lower()

    @property
    def axis(self) -> str:
        """Returns its name as the title of an axis whose values are `on_axis`."""
        return f"{self.words}, %" if self._is_share else self.words

    def on_axis(self, score: float) -> float:
        """Returns `score` in the axis' unit."""
        return 100 * score if self._is_share else score

    def text(self, score: float) -> str:
        """Formats a value: '77.62%' of an accuracy, '0.6987' of any other score."""
        return f"{score:.2%}" if self._is_share else f"{score:.4f}"

    def rank(self, score: float) -> float:
        """Returns a number that is larger for better scores."""
        return score if self.higher_is_better else -score

    @property
    def _is_share(self) -> bool:
        return self.name == "accuracy"


ACCURACY = Metric()
