"""Metrics of training as records: JSON lines, TensorBoard, and a function of the user's.

Every record is a flat dict with an `event`; numbers that are not finite are null.

| event  | keys |
|--------|------|
| start  | time (ISO 8601), and everything in the run's config (model, hidden, lr, seed, ...) |
| resume | the same, and epoch, batch: where training goes on |
| step   | epoch; batch (minibatches of this epoch trained on so far); loss (mean over the minibatches since the step record before); seconds, wait_seconds, read_bytes, requested_rows (since then, or since a resume) |
| epoch  | epoch, loss, train_seconds, wait_seconds, read_bytes, requested_rows, hit_rate_device, hit_rate_pinned, hit_rate_cpu, skipped_batches (with `keep_going`: whose loss was not finite); and, where evaluated, valid_loss, test_loss and the scores of the task: valid_accuracy, test_accuracy |
| end    | best_epoch; and, where evaluated, its scores: valid_accuracy, test_accuracy |

Epochs are counted from 0. Rates are in [0, 1]. Scores are accuracy for classification, with two classes also
average_precision and roc_auc; micro_f1, average_precision and roc_auc for labels; mae, rmse and r2 for regression; mrr, hits@1, hits@3 and hits@10 for links.
"""  # noqa: E501

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from diskgnn.errors import ConfigError
from diskgnn.files.file_reading import read_whole
from diskgnn.files.own_files import open_new_file
from diskgnn.paths import PathLike
from diskgnn.training.result_files import check_writable, refuse_foreign, writing
from diskgnn.training.results import EpochResult, Spent, TrainResult

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

Record = dict[str, Any]
_RECORD_START = b'{"event": "'


def start_record(config: Mapping[str, Any], resumed_from: tuple[int, int] | None) -> Record:
    """Makes the first record of a run, or of one that goes on from (epoch, batch)."""
    now = datetime.now(timezone.utc).isoformat()
    config = {key: value for key, value in config.items() if key != "schema"}  # which is nested
    if resumed_from is None:
        return {"event": "start", "time": now, **config}
    return {"event": "resume", "time": now, "epoch": resumed_from[0], "batch": resumed_from[1], **config}


def step_record(epoch: int, batch: int, loss: float, spent: Spent) -> Record:
    """Makes the record of the minibatches since the step record before: their mean loss, and what was spent on them."""
    return {
        "event": "step",
        "epoch": epoch,
        "batch": batch,
        "loss": loss,
        "seconds": spent.seconds,
        "wait_seconds": spent.load.wait_seconds,
        "read_bytes": spent.load.read_bytes,
        "requested_rows": spent.load.requested_rows,
    }


def epoch_record(result: EpochResult) -> Record:
    """Makes the record of a finished epoch."""
    return {"event": "epoch", **result.as_record()}


def end_record(result: TrainResult) -> Record:
    """Makes the last record of a run: scores of the best epoch."""
    return {"event": "end", "best_epoch": result.best_epoch, **result.scores()}


class MetricsWriter:
    """Hands every record to the sinks that were asked for; nothing is asked for by default.

    Args:
        path: a file of JSON lines; runs are appended.
        tensorboard: a folder for TensorBoard's event files.
        callback: called with each record, in the thread that trains; what it raises ends training.
        resumed_at: (epoch, batch) that training goes on from. Records of the last run in `path` that lie after it
            are dropped, because they are about to be written again.
        global_step: minibatches trained on before `resumed_at`; TensorBoard's steps count on from there.

    Raises:
        ConfigError: TensorBoard is not installed, `path` holds something that is no metrics file, or the one or the
            other cannot be written.
        DiskFullError: there is no room for them.
        ReadError: the disk failed while the records of earlier runs were read.
    """

    def __init__(
        self,
        path: PathLike | None = None,
        tensorboard: PathLike | None = None,
        callback: Callable[[Record], None] | None = None,
        resumed_at: tuple[int, int] | None = None,
        global_step: int = 0,
    ) -> None:
        self._callback = callback
        self._board = None if tensorboard is None else _open_board(tensorboard, global_step if resumed_at else None)
        self._file = None
        if path is not None:
            self._path = Path(path)
            refuse_foreign(path, "metrics", _RECORD_START.decode(), "file of training metrics")
            with writing(path, "metrics"):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                if self._path.is_file():
                    _drop_torn_line(self._path)
                    if resumed_at is not None:
                        _drop_records_after(self._path, *resumed_at)
                self._file = self._path.open("a", encoding="utf-8")

    def write(self, record: Record, global_step: int) -> None:
        """Hand over one record, `global_step` minibatches after the start of training."""
        record = {key: _finite(value) for key, value in record.items()}
        if self._file is not None:
            with writing(self._path, "metrics"):
                self._file.write(json.dumps(record) + "\n")
                self._file.flush()
        if self._board is not None and record["event"] in ("step", "epoch"):
            for key, value in record.items():
                if isinstance(value, (int, float)) and key not in ("epoch", "batch"):
                    self._board.add_scalar(f"{record['event']}/{key}", value, global_step)
        if self._callback is not None:
            self._callback(record)

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            with writing(self._path, "metrics"):
                self._file.close()
        if self._board is not None:
            self._board.close()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _open_board(folder: PathLike, purge_step: int | None) -> SummaryWriter:
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "metrics for TensorBoard were asked for, but it is not installed: pip install 'diskgnn[tensorboard]'"
        ) from error
    check_writable(folder, "tensorboard")
    return SummaryWriter(str(folder), purge_step=purge_step)


def _drop_torn_line(path: Path) -> None:
    """Cut the start of a record off the end of `path`, which a crash left there."""
    content = read_whole(path)
    torn = content.rpartition(b"\n")[2]
    if torn and torn.startswith(_RECORD_START[: len(torn)]):
        os.truncate(path, len(content) - len(torn))


def _drop_records_after(path: Path, epoch: int, batch: int) -> None:
    """Cut from `path` what its last run recorded after (epoch, batch)."""
    try:
        lines = read_whole(path).decode().splitlines(keepends=True)
        records = [json.loads(line) for line in lines]
        last_start = max((i for i, record in enumerate(records) if record["event"] == "start"), default=0)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} is no file of training metrics; name another one (it was not changed)") from error

    def stays(record: Record) -> bool:
        if record["event"] == "end":
            return False
        if record["event"] == "epoch":
            return bool(record["epoch"] < epoch)
        return "batch" not in record or (record["epoch"], record["batch"]) <= (epoch, batch)

    kept = [line for i, line in enumerate(lines) if i < last_start or stays(records[i])]
    temporary = path.with_name(f".{path.name}.partial")
    with open_new_file(temporary) as file:
        file.writelines(line.encode() for line in kept)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
