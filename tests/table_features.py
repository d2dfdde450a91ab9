"""x of tables, however their rows are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.graph.type_data import NodeSet


def x_of(nodes: NodeSet) -> npt.NDArray[Any]:
    """[N, D]: what minibatches have."""
    if nodes.config.is_constant:
        return np.ones((nodes.num_nodes, 1), np.float32)
    file = nodes.feature_file
    assert file is not None
    return file.x(file.rows.as_tensor(np.array(nodes.features))).numpy()
