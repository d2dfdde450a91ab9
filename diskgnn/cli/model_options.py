"""Options of the commands that train a model: its shape, its rate of learning, and what the best epoch is."""

from __future__ import annotations

import click

from diskgnn.cli.options import Choice, Size, combined, section
from diskgnn.nn.model_spec import AGGREGATIONS, DECODERS, MODELS, NORMS

_model, _training = section("Model"), section("Training")

shape = combined(
    _model("--model", type=Choice(MODELS),
           help="GraphSAGE, GAT or GCN; on a graph with several types R-GCN, R-GAT or HGT; on either relational, which "
                "takes columns and times, too: as many layers as fanouts. Of hop features SIGN, SGC or SeHGNN.  "
                "[default: sage, on a typed graph rgcn, of hop features sign, along paths of edge types sehgnn]"),
    _model("--hidden", type=int, default=256, show_default=True, help="Width of the hidden layers."),
    _model("--aggregation", type=Choice(AGGREGATIONS), default="mean", show_default=True,
           help="What GraphSAGE makes of the neighbours' rows, column by column."),
    _model("--norm", type=Choice(NORMS),
           help="Normalise the rows between layers.  [default: none, of sign and sehgnn batch, of "
                "relational layer]"),
    _model("--skip/--no-skip", default=False, show_default=True, help="Add a layer's input to its output."),
    _model("--dropout", type=float, default=0.5, show_default=True, help="Share of hidden units dropped."),
    _model("--decoder", type=Choice(DECODERS),
           help="Makes a link's score, or what is said of a pair that has a label.  [default: dot; mlp for labels]"),
    _model("--embedding-memory", type=Size(), default="2GiB", show_default=True,
           help="What the vectors of nodes without features may take."),
)  # fmt: skip
training = combined(
    _training("--lr", type=float, default=0.003, show_default=True, help="Adam's learning rate."),
    _training("--best-by", metavar="SCORE",
              help="The validation score that the best epoch is the best by: accuracy, roc_auc, average_precision, "
                   "micro_f1, mae, rmse, r2, mrr, hits@1, hits@3, hits@10; for train also loss.  [default: the first "
                   "that the task has]"),
)  # fmt: skip
device = click.option("--device", default="cpu", show_default=True, help="Where the model is: cpu, cuda, cuda:1.")
