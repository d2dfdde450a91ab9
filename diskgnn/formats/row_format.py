"""How one node's feature vector lies in a file or in memory: the one place that knows dtypes and row bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ConfigError
from diskgnn.formats.quantisation import Quantisation
from diskgnn.formats.records import Key, Record
from diskgnn.stores.locations import Location, local

if TYPE_CHECKING:
    import torch

# What .npy calls each feature dtype. NumPy has no bfloat16: its bits are stored as uint16. It has no int4: two codes
# lie in a byte, that of the even column in its low four bits.
FEATURE_STORAGE = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "int8": "|i1", "int4": "|u1"}
# All bits of the exponent are set in NaN and in infinity, and in no other number.
_EXPONENT_BITS = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}


# A user's uint8 are numbers, not pairs of codes: only `convert` makes int4.
_STORED_AS = {np.dtype(stored): dtype for dtype, stored in FEATURE_STORAGE.items() if dtype != "int4"}


def dtype_stored_as(storage: np.dtype[Any]) -> str | None:
    """Returns the feature dtype that NumPy stores as `storage`, in native byte order; None if there is none."""
    return _STORED_AS.get(storage)


@dataclass(frozen=True)
class RowFormat(Record):
    """The rows of a feature matrix [N, num_features].

    Raises:
        ConfigError: a dtype that features cannot have, or no columns.
    """

    dtype: Annotated[str, Key("feature_dtype")]  # a key of FEATURE_STORAGE
    num_features: Annotated[int, Key("feature_width")]  # D

    def __post_init__(self) -> None:
        if self.dtype not in FEATURE_STORAGE:
            raise ConfigError(f"feature_dtype: expected one of {', '.join(FEATURE_STORAGE)}, found {self.dtype!r}")
        if self.num_features < 1:
            raise ConfigError(f"num_features: expected at least 1, found {self.num_features}")

    @staticmethod
    def stored_as(storage: np.dtype[Any], num_features: int) -> RowFormat:
        """Returns the format of rows that NumPy stores as `storage`; uint16 is bfloat16.

        Raises:
            ConfigError: features cannot be stored so.
        """
        return RowFormat(dtype_stored_as(storage) or storage.name, num_features)

    @property
    def storage(self) -> np.dtype[Any]:
        """Returns what NumPy calls the dtype: uint16 for bfloat16."""
        return np.dtype(FEATURE_STORAGE[self.dtype])

    @property
    def stored_columns(self) -> int:
        """Returns how many values of `storage` a row has: half as many as columns for int4, rounded up."""
        return -(-self.num_features // 2) if self.dtype == "int4" else self.num_features

    @property
    def row_bytes(self) -> int:
        """Returns the bytes of one row."""
        return self.stored_columns * self.storage.itemsize

    @property
    def file_dtype(self) -> np.dtype[Any]:
        """Returns the dtype of a graph's file of such rows."""
        return self.storage

    @property
    def file_row_shape(self) -> tuple[int, ...]:
        """Returns the shape of a row in a graph's file."""
        return (self.stored_columns,)

    @property
    def told(self) -> str:
        """Returns for people what a row is: '128 x float32'."""
        return f"{self.num_features} x {self.dtype}"

    @property
    def exponent_bits(self) -> int | None:
        """Returns the mask of a value's exponent bits; None for whole numbers."""
        return _EXPONENT_BITS.get(self.dtype)

    @property
    def num_codes(self) -> int:
        """Returns the numbers of a row whose meaning a `Quantisation` may say; 0 of floats."""
        return self.num_features if self.dtype in ("int8", "int4") else 0

    @property
    def are_codes(self) -> bool:
        """Returns True if these numbers mean nothing without one."""
        return self.dtype == "int4"

    @property
    def torch_dtype(self) -> torch.dtype:
        """Returns what torch calls the dtype: uint8 for int4."""
        import torch

        return getattr(torch, "uint8" if self.dtype == "int4" else self.dtype)  # type: ignore[no-any-return]

    def as_tensor(self, data: npt.NDArray[Any]) -> torch.Tensor:
        """Returns [n, stored_columns] tensor over the rows in `data`, of any shape and dtype, sharing its memory."""
        import torch

        # torch's own uint16 cannot become bfloat16 without a copy; int16 can.
        bits = data.reshape(-1).view(np.int16 if self.dtype == "bfloat16" else self.storage)
        return torch.from_numpy(bits).view(self.torch_dtype).view(-1, self.stored_columns)


class Cutting(Protocol):
    """Cuts columns out of stored rows, see `record_projection`."""

    @property
    def stored(self) -> RowFormat:
        """Returns how rows are stored."""
        ...

    def cut(self, data: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Returns [n, bytes] of the rows that begin at `places` [n] in `data`."""
        ...

    def cut_all(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Returns [n, bytes] of the rows that fill `data`."""
        ...


class Widening(Protocol):
    """Makes x of stored rows."""

    def widened(self, words: torch.Tensor) -> torch.Tensor:
        """Returns x [n, D] float32 of rows as `RowFormat.as_tensor` has them."""
        ...


@dataclass(frozen=True)
class FeatureFile:
    """Says where a feature matrix [num_rows, D] lies: row i starts at data_offset_bytes + i * file_row_bytes."""

    path: Location
    data_offset_bytes: int
    num_rows: int
    rows: RowFormat
    quantisation: Quantisation | None = None  # what the codes mean; None of rows that have no codes
    view: Widening | None = None  # of records: what x is, see `record_view`
    projection: Cutting | None = None  # of records that have more columns in the file: `rows` is without them

    @property
    def local_path(self) -> Path:
        """Returns `path`, for what reads files of this machine only.

        Raises:
            ConfigError: it lies on a store.
        """
        return local(self.path, "this")

    def x(self, stored: torch.Tensor) -> torch.Tensor:
        """Returns x [n, D] of rows as `RowFormat.as_tensor` has them: dequantised to float32, the view of records, or
        the rows themselves."""
        if self.view is not None:
            return self.view.widened(stored)
        return stored if self.quantisation is None else self.quantisation.widened(stored)

    @property
    def whole(self) -> FeatureFile:
        """Returns the file with all columns that it has, as which it is read whole; `cut` leaves them out again."""
        if self.projection is None:
            return self
        return replace(self, rows=self.projection.stored, quantisation=None, view=None, projection=None)

    def cut(self, stored: torch.Tensor) -> torch.Tensor:
        """Returns rows of those of `whole`, both as `RowFormat.as_tensor` has them, in the host's memory."""
        if self.projection is None:
            return stored
        return self.rows.as_tensor(self.projection.cut_all(stored.numpy().reshape(-1).view(np.uint8)))

    @property
    def is_x(self) -> bool:
        """Returns True if the rows are what x is."""
        return self.quantisation is None and self.view is None

    @property
    def x_row_bytes(self) -> int:
        """Returns the bytes of one row of x, as loaders deliver it unless they are asked for another dtype."""
        return self.row_bytes if self.is_x else 4 * self.rows.num_features

    @property
    def row_bytes(self) -> int:
        """Returns the bytes of one node's feature vector."""
        return self.rows.row_bytes

    @property
    def num_bytes(self) -> int:
        """Returns the bytes of all nodes' feature vectors."""
        return self.num_rows * self.row_bytes

    @property
    def file_row_bytes(self) -> int:
        """Returns the bytes of a row in the file."""
        return self.row_bytes if self.projection is None else self.projection.stored.row_bytes

    @property
    def file_bytes(self) -> int:
        """Returns the bytes of the file, its header included."""
        return self.data_offset_bytes + self.num_rows * self.file_row_bytes

    def kept(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Returns the bytes of rows of which `data` has those of the file."""
        return data if self.projection is None else self.projection.cut_all(data).reshape(-1)
