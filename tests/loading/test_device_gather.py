"""The gather kernel against index_select: on the GPU where there is one, else in Triton's interpreter. And what it
compiles to for a GPU, which takes none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from diskgnn.loading.device_gather import gather_rows

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = [pytest.mark.cuda] if DEVICE.type == "cuda" else []
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int8]
WIDTHS = [1, 7, 16, 100, 128, 513, 1433]


def random_rows(count, width, dtype, seed):
    """Rows of every bit pattern."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-128, 128, (count, width * dtype.itemsize), dtype=torch.int8, generator=generator)
    return bits.view(dtype).to(DEVICE)


def pinned_on_host(rows):
    return rows.cpu().pin_memory() if DEVICE.type == "cuda" else rows


class Split:
    """Inputs in random order, some of them twice, and what index_select makes of their rows side by side."""

    def __init__(self, num_device, num_pinned, num_staged, width, dtype, repeats=2, values=None):
        counts = (num_device, num_pinned, num_staged)
        self.tiers = [random_rows(count, width, dtype, seed) for seed, count in enumerate(counts)]
        if values is not None:
            self.tiers = [values((count, width)).to(DEVICE) for count in counts]
        num_readable = num_device + num_pinned
        reached = torch.randint(
            max(num_readable, 1), (repeats * num_readable,), generator=torch.Generator().manual_seed(3)
        )
        order = torch.randperm(len(reached) + num_staged, generator=torch.Generator().manual_seed(4))
        number = torch.cat([reached, torch.arange(num_readable, num_readable + num_staged)])[order]
        is_staged = number >= num_readable
        # Staged rows lie in the order of the inputs; their addresses (cpu slots, rows of the extent) do not.
        number[is_staged] = torch.arange(num_readable, num_readable + num_staged)
        self.addresses = number.int()
        self.addresses[is_staged] = num_readable + torch.randint(1 << 20, (num_staged,)).int()
        self.positions = torch.cumsum(is_staged, 0, dtype=torch.int32)
        self.expected = torch.cat(self.tiers).index_select(0, number.to(DEVICE))

    def gather(self, out, **options):
        device, pinned, staged = self.tiers
        return gather_rows(
            self.addresses.to(DEVICE), self.positions.to(DEVICE), device, pinned_on_host(pinned), staged, out, **options
        )  # fmt: skip


def assert_same_bits(found, expected):
    assert found.dtype == expected.dtype
    assert torch.equal(found.view(torch.int8), expected.view(torch.int8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_are_moved_bit_for_bit(dtype, width):
    split = Split(5, 6, 9, width, dtype)
    assert_same_bits(split.gather(torch.empty_like(split.expected)), split.expected)


@pytest.mark.parametrize(
    "counts", [(0, 0, 5), (0, 5, 0), (5, 0, 0), (0, 4, 3), (4, 0, 3), (4, 3, 0), (1, 1, 1), (0, 0, 0)]
)
def test_tiers_may_be_empty(counts):
    split = Split(*counts, 7, torch.float32)
    assert_same_bits(split.gather(torch.empty_like(split.expected)), split.expected)


def test_more_rows_than_programs_take_at_once():
    split = Split(40, 40, 40, 600, torch.float16, repeats=10)
    assert_same_bits(split.gather(torch.empty_like(split.expected), programs_per_multiprocessor=1), split.expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("width", WIDTHS)
def test_widening(dtype, width):
    # Not every bit pattern: the interpreter gets subnormal numbers wrong.
    split = Split(5, 6, 9, width, dtype, values=lambda shape: (100 * torch.randn(shape)).to(dtype))
    expected = split.expected.float()
    found = split.gather(torch.empty_like(expected))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_dequantising(width):
    split = Split(5, 6, 9, width, torch.int8)
    generator = torch.Generator().manual_seed(5)
    scale, zero_point = (torch.rand(width, generator=generator).to(DEVICE) for _ in range(2))
    expected = (split.expected.float() - 100 * zero_point) * scale
    found = split.gather(torch.empty_like(expected), scale=scale, zero_point=100 * zero_point)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("out", [torch.float32, torch.float16])
def test_dequantising_two_columns_a_byte(width, out):
    split = Split(5, 6, 9, (width + 1) // 2, torch.uint8)
    generator = torch.Generator().manual_seed(5)
    scale, zero_point = (torch.rand(width, generator=generator).to(DEVICE) for _ in range(2))
    codes = torch.stack((split.expected & 15, split.expected >> 4), -1).flatten(1)[:, :width]
    expected = ((codes.float() - 8 * zero_point) * scale).to(out)
    found = split.gather(torch.empty_like(expected), scale=scale, zero_point=8 * zero_point)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_memory_that_does_not_start_on_16_bytes(offset):
    split = Split(4, 4, 4, 8, torch.float32)
    split.tiers = [
        torch.cat([torch.empty(offset, device=DEVICE), tier.flatten()])[offset:].view(-1, 8) for tier in split.tiers
    ]
    out = torch.empty(offset + split.expected.numel(), device=DEVICE)[offset:].view(-1, 8)
    assert_same_bits(split.gather(out), split.expected)


def test_offsets_beyond_two_gibibytes(tmp_path):
    """The last of so many rows that neither their bytes nor their words can be counted in 32 bits; a sparse file."""
    width, num_rows = 1 << 16, (1 << 16) + 3
    if DEVICE.type == "cuda" and torch.cuda.mem_get_info()[0] < 6 << 30:
        pytest.skip("needs 6 GiB of GPU memory")
    if DEVICE.type == "cuda":
        rows = torch.zeros((num_rows, width), dtype=torch.int8, device=DEVICE)
    else:
        size = num_rows * width
        with (tmp_path / "rows").open("wb") as file:
            file.truncate(size)
        rows = torch.from_file(str(tmp_path / "rows"), shared=True, size=size, dtype=torch.int8).view(num_rows, width)
    marks = torch.arange(7, dtype=torch.int8, device=DEVICE)
    rows[-1, -7:] = marks
    addresses, positions = torch.tensor([num_rows - 1], device=DEVICE).int(), torch.ones(1, device=DEVICE).int()
    none = rows[:0]
    for device, pinned, staged in ((rows, none, none), (none, none, rows)):
        one = (rows if len(device) else none), pinned, staged
        where = torch.tensor([num_rows], device=DEVICE).int() if len(staged) else positions
        found = gather_rows(addresses, where, *one, torch.empty((1, width), dtype=torch.int8, device=DEVICE))
        assert torch.equal(found[0, -7:], marks)


COMPILE = """
import re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from diskgnn.loading.device_gather import _gather

def accesses(rows, out, width, dequantize=False, nibbles=False):
    arrays = dict(addresses="*i32", positions="*i32", device_rows=rows, pinned_rows=rows, staged_rows=rows, out=out)
    numbers = dict(num_rows="i32", num_device="i32", num_readable="i32")
    columns = min(triton.next_power_of_2(width), 512)
    constants = dict(width=width, stored=(width + 1) // 2 if nibbles else width, dequantize=dequantize, nibbles=nibbles,
                     tile_rows=max(1, 2048 // columns), tile_columns=columns)
    scales = dict.fromkeys(("scale", "zero_point"), "*fp32" if dequantize else "constexpr")
    signature = arrays | scales | numbers | dict.fromkeys(constants, "constexpr")
    names = list(signature)
    if not dequantize:
        constants |= dict(scale=None, zero_point=None)
    aligned = [name for name in names if signature[name][0] == "*" and name not in ("addresses", "positions")]
    source = ASTSource(_gather, signature, {(names.index(name),): value for name, value in constants.items()},
                       {(names.index(name),): [["tt.divisibility", 16]] for name in aligned})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert len(compiled.asm["cubin"]) > 0
    return set(re.findall(r"(?:ld|st)[.]global[.\\w]*", compiled.asm["ptx"]))

for case in (("*i32", "*i32", 128), ("*i32", "*i32", 100)):  # rows of 512 and 400 bytes
    assert accesses(*case) == {"ld.global.b32", "ld.global.v4.b32", "st.global.v4.b32"}, case
assert accesses("*i32", "*i32", 102) == {"ld.global.b32", "ld.global.v2.b32", "st.global.v2.b32"}
assert accesses("*i32", "*i32", 1433) == {"ld.global.b32", "st.global.b32"}
assert accesses("*i8", "*i8", 7) == {"ld.global.b32", "ld.global.b8", "st.global.b8"}
assert {"ld.global.v4.b32", "st.global.v4.b32"} <= accesses("*i8", "*fp32", 128, True)
assert "st.global.v4.b32" in accesses("*u8", "*fp32", 128, True, True)
"""


@pytest.mark.slow
def test_compiled_for_a_gpu_rows_are_read_and_written_16_bytes_at_a_time(tmp_path):
    """Hopper's machine code, made without a GPU: the only loads of 4 bytes are those of addresses and positions."""
    if not (Path(sys.modules["triton"].__file__).parent / "backends" / "nvidia").is_dir():
        pytest.skip("this triton was built without its NVIDIA back end")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    (tmp_path / "compile.py").write_text(COMPILE)  # Triton reads the source of what it compiles
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2]), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run([sys.executable, tmp_path / "compile.py"], env=environment, check=True, timeout=240)
