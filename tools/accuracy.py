"""Score models on a graph: each is tuned by as many trials, on validation alone, then trained with paired seeds.

    python datasets/debian_packages.py packages
    python tools/accuracy.py packages --results results.jsonl --scratch scratch
    python datasets/genes.py genes-typed --typed
    python tools/accuracy.py genes-typed --target gene --temporal ignore --models mlp,sign,sehgnn,rgcn \\
        --reference rgcn --results results.jsonl --scratch scratch

The models:

    mlp                a seed's own features
    labels             label propagation (Zhou et al., Learning with Local and Global Consistency, 2003), by SciPy
    sgc, sign, sehgnn  what `propagate` makes
    pyg-sign           the same hops by PyG's `transforms.SIGN`, in memory, and the model of PyG's examples/sign.py
    sage, gat, rgcn    fresh epochs of sampled neighbours; in the test all neighbours, unless edges have times

The grid of each model has 72 settings, and every model tries as many. The epoch that is best on valid counts, and the
setting whose epoch is best; training ends after PATIENCE epochs without a better one. The chosen setting is trained
with each seed, and test is read once, at the best epoch. A seed is the same for all models: the table has the mean
difference to the reference over pairs, and its standard error.

RESULTS has a line for whatever is done. That is not repeated, so what was stopped goes on.

Seconds are those of the processor until valid is within 0.005 (0.5 points) of its best, validation included, of so many
runs (the median of the seeds) after one preparation. `--wall` prints seconds of the clock: for an idle machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import diskgnn
from diskgnn.models import SIGN

Settings = dict[str, Any]
Seconds = tuple[float, float]  # of the clock, and of the processor, all threads together
Curve = list[tuple[float, float, float]]  # seconds since the start and the valid score, after each epoch
Fitted = tuple[Curve, Callable[[], float]]  # and what reads the test

WIDE: dict[str, tuple[Any, ...]] = {"lr": (0.001, 0.003, 0.01), "dropout": (0.0, 0.3, 0.6), "hidden": (128, 256)}
SAMPLED = {**WIDE, "norm": ("batch",), "skip": (False, True), "fanouts": ("10,10", "10,5,5")}
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "mlp": {**WIDE, "num_layers": (1, 2), "norm": ("batch", "layer")},
    "labels": {"keep": tuple(each / 18 for each in range(18)), "hops": (10, 50), "operators": ("mean", "symmetric")},
    "sgc": {"lr": (0.003, 0.01, 0.03), "weight_decay": (0.0, 1e-5, 1e-4, 1e-3), "hops": (1, 2, 3),
            "operators": ("mean", "symmetric")},
    "sign": {**WIDE, "hops": (2, 3), "operators": ("mean", "mean,symmetric")},
    "sehgnn": {**WIDE, "hops": (1, 2), "num_layers": (1, 2)},
    "pyg-sign": {**WIDE, "hops": (2, 3), "batch_size": (1024, 4096)},
    "sage": SAMPLED,
    "gat": SAMPLED,
    "rgcn": SAMPLED,
}  # fmt: skip
TYPED_SIGN = {**WIDE, "hops": (1, 2), "num_layers": (1, 2)}
TUNING_SEED = 1_000_000
WITHIN = 0.005
RUNS = (1, 5, 20)


class Study:
    """Holds one graph, how models are trained on it, and its lines of RESULTS. `options` are those of the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.graph, self.name = options, diskgnn.Graph.open(options.graph), options.graph.name
        trained = (name for name, nodes in self.graph.nodes.items() if "train" in nodes.splits)
        self.target = options.target or next(trained)
        self.labels = np.asarray(self.graph.nodes[self.target].labels)
        self.splits = self.graph.nodes[self.target].splits
        self.sign = -1 if options.score == "mae" else 1  # of better scores
        self.pyg_inputs: dict[int, dict[str, Tensor]] = {}  # by hops and split, [n, 1 + hops, D]
        options.scratch.mkdir(parents=True, exist_ok=True)

    def lines(self) -> list[dict[str, Any]]:
        """Returns what RESULTS says of this graph."""
        file = self.options.results
        lines = map(json.loads, file.read_text().splitlines() if file.exists() else [])
        return [each for each in lines if each["graph"] == self.name]

    def append(self, line: dict[str, Any]) -> None:
        """Adds a line to RESULTS."""
        with self.options.results.open("a") as file:
            file.write(json.dumps({"graph": self.name, **line}) + "\n")

    def prepared(self, settings: Settings, make: Callable[[Path], object]) -> Path:
        """Returns the path that `make` writes, which is called once. RESULTS says what that took."""
        name = preparation(settings)
        if not (path := self.options.scratch / f"{self.name}-{name}").exists():
            began = now()
            make(path)
            self.append({"prepared": name, "seconds": since(began)})
        return path

    def train(self, source: Any, valid: Any, model: Any, seed: int, rest: Settings, began: Seconds) -> Any:
        """Returns the model of the best epoch, and the curve."""
        options, curve = self.options, Curve()

        def note(record: dict[str, Any]) -> None:
            if record["event"] == "epoch":
                curve.append((*since(began), record[f"valid_{options.score}"]))

        if options.score == "mae":
            rest = {**rest, "loss": "l1"}
        result = diskgnn.train(source, valid_source=valid, model=model, epochs=options.epochs, seed=seed,
                               patience=options.patience, best_by=options.score, callback=note, progress=False,
                               **rest)  # fmt: skip
        return result.model, curve

    def score(self, outputs: npt.NDArray[Any], split: str) -> float:
        """Returns the score of outputs [n, C] for the seeds of a split, in their order."""
        labels = self.labels[self.splits[split]]
        if self.options.score == "accuracy":
            return float(np.mean(outputs.argmax(1) == labels))
        if self.options.score == "roc_auc":
            from sklearn.metrics import roc_auc_score

            return float(roc_auc_score(labels, outputs[:, 1] - outputs[:, 0]))
        return float(np.abs(outputs.reshape(labels.shape) - labels).mean())

    def best(self, curve: Curve) -> int:
        """Returns the first of the best epochs, or -1 without any."""
        return max(range(len(curve)), key=lambda epoch: self.sign * curve[epoch][2], default=-1)

    def seconds_until_close(self, curve: Curve) -> Seconds:
        """Returns the seconds until valid is within WITHIN of its best."""
        best = curve[self.best(curve)][2]
        return next((clock, processor) for clock, processor, valid in curve if abs(best - valid) <= WITHIN)


def fit_hops(study: Study, model: str, settings: Settings, seed: int) -> Fitted:
    """Trains on a hops directory."""
    rest, options = dict(settings), study.options
    hops, operators = rest.pop("hops", 1), rest.pop("operators", "mean")
    asked: Settings = {"hops": hops, "operators": operators}
    if study.graph.is_typed:
        along = {"paths": options.paths} if options.paths else {"hops": hops}
        asked = {**along, "target": study.target, "ignore_times": options.temporal is not None}
    path = study.prepared(
        settings, lambda out: diskgnn.propagate(study.graph, out, seed=0, progress=False, **asked)
    )  # fmt: skip
    began, made = now(), model
    with (
        diskgnn.HopsLoader(path, batch_size=options.batch_size, shuffle_seed=seed) as source,
        diskgnn.HopsLoader(path, "valid", batch_size=4096) as valid,
    ):
        if model == "mlp":
            torch.manual_seed(seed)
            made = MLP(source, **{name: rest.pop(name) for name in ("hidden", "num_layers", "dropout", "norm")})
        found, curve = study.train(source, valid, made, seed, rest, began)
    return curve, lambda: diskgnn.evaluate(found, path, progress=False).scores[options.score]


def fit_sampled(study: Study, model: str, settings: Settings, seed: int) -> Fitted:
    """Trains on fresh epochs. Tests on all neighbours, or on drawn ones where edges have times."""
    rest, options, temporal = dict(settings), study.options, study.options.temporal
    drawing = {"fanouts": [int(each) for each in rest.pop("fanouts").split(",")], "batch_size": options.batch_size,
               "target": study.target, "temporal": temporal}  # fmt: skip
    samples = options.scratch / "samples"

    def make(out: Path) -> None:
        diskgnn.sample(study.graph, samples, splits=["valid", "test"], overwrite=True, progress=False, **drawing)
        diskgnn.pack(study.graph, samples, out, progress=False)

    packed, began = study.prepared(settings, make), now()
    with (
        diskgnn.FreshEpochs(study.graph, options.scratch, **drawing, seed=seed, cpu_cache="100%") as source,
        diskgnn.Loader(packed, "valid") as valid,
    ):
        found, curve = study.train(source, valid, model, seed, rest, began)

    def test() -> float:
        if temporal in ("uniform", "last"):
            return diskgnn.evaluate(found, packed, progress=False).scores[options.score]
        out = options.scratch / "outputs.npy"
        diskgnn.infer(study.graph, out, found, node_type=study.target, nodes=study.splits["test"], overwrite=True,
                      ignore_times=temporal == "ignore", progress=False)  # fmt: skip
        return study.score(np.load(out), "test")

    return curve, test


def fit_labels(study: Study, model: str, settings: Settings, seed: int) -> Fitted:
    """Hands on the classes of train seeds. In every hop, each gets back a share `keep` of its own."""
    from scipy.sparse import csr_array, diags_array

    began, indptr, train = now(), np.asarray(study.graph.indptr), study.splits["train"]
    shape = (len(indptr) - 1, len(indptr) - 1)
    edges = csr_array((np.ones(indptr[-1]), np.asarray(study.graph.indices), indptr), shape=shape)
    degrees = np.maximum(np.diff(indptr), 1.0)
    left, right = (-1.0, 0.0) if settings["operators"] == "mean" else (-0.5, -0.5)
    edges = diags_array(degrees**left) @ edges @ diags_array(degrees**right)
    own = np.zeros((shape[0], study.labels.max() + 1))
    own[train, study.labels[train]] = 1
    found = own
    for _ in range(settings["hops"]):
        found = settings["keep"] * own + (1 - settings["keep"]) * (edges @ found)
    valid, test = (study.score(found[study.splits[split]], split) for split in ("valid", "test"))
    return [(*since(began), valid)], lambda: test


def fit_pyg_sign(study: Study, model: str, settings: Settings, seed: int) -> Fitted:
    """Trains in memory, as PyG's examples do."""
    inputs, options = pyg_inputs(study, settings), study.options
    torch.manual_seed(seed)
    labels = torch.from_numpy(study.labels[study.splits["train"]])
    began, curve, best = now(), Curve(), {}
    net = PyGSign(inputs["train"], settings["hidden"], int(labels.max()) + 1, settings["dropout"])
    optimizer = torch.optim.Adam(net.parameters(), lr=settings["lr"])

    def score(split: str) -> float:
        with torch.no_grad():
            outputs = torch.cat([net.eval()(part) for part in inputs[split].split(4096)])
        return study.score(outputs.numpy(), split)

    while len(curve) < options.epochs and len(curve) - study.best(curve) <= options.patience:
        for rows in torch.randperm(len(labels)).split(settings["batch_size"]):
            optimizer.zero_grad()
            F.cross_entropy(net.train()(inputs["train"][rows]), labels[rows]).backward()
            optimizer.step()
        curve.append((*since(began), score("valid")))
        if study.best(curve) == len(curve) - 1:
            best = {name: each.clone() for name, each in net.state_dict().items()}
    net.load_state_dict(best)
    return curve, lambda: score("test")


def pyg_inputs(study: Study, settings: Settings) -> dict[str, Tensor]:
    """Returns [n, 1 + hops, D] of each split: PyG computes hops of all nodes in memory."""
    hops = settings["hops"]
    if hops not in study.pyg_inputs:
        from torch_geometric import transforms
        from torch_geometric.data import Data

        began, degrees = now(), np.diff(study.graph.indptr)
        edges = np.stack([np.asarray(study.graph.indices), np.repeat(np.arange(len(degrees)), degrees)])
        x = torch.from_numpy(np.array(study.graph.nodes[study.target].features, np.float32))
        data = transforms.SIGN(hops)(Data(x=x, edge_index=torch.from_numpy(edges.astype(np.int64))))
        x = torch.stack([x, *(data[f"x{hop}"] for hop in range(1, hops + 1))], 1)
        study.pyg_inputs[hops] = {split: x[torch.from_numpy(ids)] for split, ids in study.splits.items()}
        study.append({"prepared": preparation(settings), "seconds": since(began)})
    return study.pyg_inputs[hops]


class PyGSign(nn.Module):
    """Computes what the model of PyG's examples/sign.py does, of inputs that are standardised as ours are."""

    def __init__(self, train: Tensor, hidden: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        self.mean, self.deviation = train.mean(0), train.std(0).clamp(min=1e-6)
        _, num_hops, width = train.shape
        self.inputs = nn.ModuleList(nn.Linear(width, hidden) for _ in range(num_hops))
        self.output, self.dropout = nn.Linear(num_hops * hidden, num_classes), dropout

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, 1 + hops, D] to [B, classes]."""
        hops = ((x - self.mean) / self.deviation).unbind(1)
        h = torch.cat([layer(hop).relu() for layer, hop in zip(self.inputs, hops, strict=True)], 1)
        found: Tensor = self.output(F.dropout(h, self.dropout, self.training))
        return found


class MLP(nn.Module):
    """Applies SIGN to nothing but a seed's own features."""

    def __init__(self, source: diskgnn.HopsLoader, **shape: Any) -> None:
        super().__init__()
        mean, deviation = (self._own(each) for each in source.statistics())
        self.layers = SIGN([("x", len(mean))], out_channels=source.num_classes, **shape)
        self.layers.standardise(mean[None], deviation[None])

    @staticmethod
    def _own(x: Any) -> Tensor:
        own: Tensor = x["x"] if isinstance(x, dict) else x[..., 0, :]
        return own

    def forward(self, x: Any) -> Tensor:
        """Maps [B, H, D], or x by segment, to [B, classes]."""
        found: Tensor = self.layers(self._own(x)[:, None])
        return found


def preparation(settings: Settings) -> str:
    """Returns what RESULTS calls the preparation that settings need; '' for none."""
    if "keep" in settings:
        return ""
    if "batch_size" in settings:
        return f"pyg-{settings['hops']}"
    if "fanouts" in settings:
        return f"packed-{settings['fanouts']}"
    return f"hops-{settings.get('hops', 1)}-{settings.get('operators', 'mean')}"


def now() -> Seconds:
    """Reads both clocks."""
    return time.perf_counter(), time.process_time()


def since(began: Seconds) -> Seconds:
    """Returns the seconds from then on."""
    return time.perf_counter() - began[0], time.process_time() - began[1]


def trials(study: Study, model: str) -> list[Settings]:
    """Returns the settings that are tried, in a random order that all models share."""
    grid = TYPED_SIGN if model == "sign" and study.graph.is_typed else GRIDS[model]
    settings = [dict(zip(grid, each, strict=True)) for each in itertools.product(*grid.values())]
    places = np.random.default_rng(0).permutation(len(settings))
    return [settings[place] for place in places[: study.options.trials]]


def fit(study: Study, model: str, settings: Settings, seed: int) -> dict[str, Any]:
    """Trains once, or returns what RESULTS has of it. With TUNING_SEED, the test is not read."""
    line: dict[str, Any] = {"model": model, "settings": settings, "seed": seed}
    for known in study.lines():
        if line.items() <= known.items():
            return known
    fits = {"labels": fit_labels, "pyg-sign": fit_pyg_sign, **dict.fromkeys(("sage", "gat", "rgcn"), fit_sampled)}
    curve, test = fits.get(model, fit_hops)(study, model, settings, seed)
    line |= {"valid": curve[study.best(curve)][2], "test": None if seed == TUNING_SEED else test()}
    study.append({**line, "curve": curve})
    print(json.dumps(line), flush=True)
    return {**line, "curve": curve}


def table(study: Study, runs: dict[str, list[dict[str, Any]]]) -> str:
    """Returns a table as Markdown: percent, or errors as they are."""
    options, processor = study.options, int(not study.options.wall)
    scale, digits = (1, 4) if options.score == "mae" else (100, 2)
    tests = {model: scale * np.array([run["test"] for run in each]) for model, each in runs.items()}
    spent = {line["prepared"]: line["seconds"][processor] for line in study.lines() if "prepared" in line}
    counts = " | ".join(f"{count} run{'s' * (count > 1)}" for count in RUNS)
    lines = [f"| {study.name} | {options.score} | less {options.reference} | {counts} | chosen |"]
    lines.append("|---" * (4 + len(RUNS)) + "|")
    for model, each in runs.items():
        settings, less = each[0]["settings"], ""
        if options.reference in set(tests) - {model}:
            pairs = tests[model] - tests[options.reference]
            less = f"{pairs.mean():+.{digits}f} ± {deviation(pairs) / len(pairs) ** 0.5:.{digits}f}"
        once = spent.get(preparation(settings), 0.0)
        run_seconds = statistics.median(study.seconds_until_close(run["curve"])[processor] for run in each)
        seconds = " | ".join(f"{once + count * run_seconds:.1f} s" for count in RUNS)
        chosen = ", ".join(f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
                           for name, value in settings.items())  # fmt: skip
        score = f"{tests[model].mean():.{digits}f} ± {deviation(tests[model]):.{digits}f}"
        lines.append(f"| {model} | {score} | {less} | {seconds} | {chosen} |")
    return "\n".join(lines)


def deviation(values: npt.NDArray[np.float64]) -> float:
    """Returns the deviation of a sample; 0 of one value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def main() -> None:
    """Trains what has no result yet, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path, help="graph directory")
    parser.add_argument("--results", type=Path, required=True, help="JSON lines, read first and added to")
    parser.add_argument("--scratch", type=Path, required=True, help="folder for what is prepared")
    parser.add_argument("--models", default="mlp,labels,sgc,sign,pyg-sign,sage,gat", help="default: %(default)s")
    parser.add_argument("--reference", default="sage", help="whose seeds others are paired with: %(default)s")
    parser.add_argument("--score", default="accuracy", choices=("accuracy", "roc_auc", "mae"))
    parser.add_argument("--target", help="type of the seeds, of a typed graph")
    parser.add_argument("--temporal", choices=("uniform", "last", "ignore"),
                        help="of a graph with times: how neighbours are drawn; propagating ignores times")  # fmt: skip
    parser.add_argument("--paths", help="of a typed graph, in place of all of some hops")
    parser.add_argument("--trials", type=int, default=8, help="settings that are tried (%(default)s)")
    parser.add_argument("--seeds", type=int, default=10, help="how many (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=60, help="at most (%(default)s)")
    parser.add_argument("--patience", type=int, default=8)
    parser.add_argument("--wall", action="store_true", help="print seconds of the clock")
    options = parser.parse_args()
    models = options.models.split(",")
    if unknown := {*models} - {*GRIDS}:
        parser.error(f"--models: expected some of {', '.join(GRIDS)}, found {', '.join(sorted(unknown))}")
    study, chosen = Study(options), {}
    for model in models:
        tried = [fit(study, model, each, TUNING_SEED) for each in trials(study, model)]
        chosen[model] = max(tried, key=lambda line: study.sign * line["valid"])["settings"]
    runs: dict[str, list[dict[str, Any]]] = {model: [] for model in models}
    for seed, model in itertools.product(range(options.seeds), models):
        runs[model].append(fit(study, model, chosen[model], seed))
    print(table(study, runs))


if __name__ == "__main__":
    main()
