from collections.abc import Iterator

import pytest
import torch

from diskgnn.files import faults


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the kernel fills x on the test's `device`; on a cpu in Triton's interpreter, where there is no GPU."""
    if request.param:
        pytest.importorskip("triton")
        if request.node.callspec.params["device"] == "cpu" and torch.cuda.is_available():
            pytest.skip("Triton compiles here, for the GPU alone")
    with faults.pretending("loading.runs_kernel", request.param):
        yield request.param
