"""Models for minibatches, and what a training loop of your own needs around them.

from diskgnn.models import make_optimizer, model_input, named_model

model = named_model(loader, "rgcn", hidden=64)
optimizer = make_optimizer(model, lr=0.003)
for batch in loader:
    out = model(batch.blocks, model_input(batch))
"""

from diskgnn.nn.between import Between
from diskgnn.nn.block_models import BlockModel, elu_dropout, make_model, relu_dropout
from diskgnn.nn.hop_models import SGC, SIGN, HopModel, SeHGNN
from diskgnn.nn.layers import GATLayer, GCNLayer, SAGELayer
from diskgnn.nn.model_output import model_input
from diskgnn.nn.model_spec import ModelSpec
from diskgnn.nn.relational_models import RelationalModel
from diskgnn.nn.typed_layers import HGTLayer, RGATLayer, RGCNLayer
from diskgnn.nn.typed_models import TypedModel
from diskgnn.training.named_models import named_model
from diskgnn.training.optimizers import make_optimizer

__all__ = [
    "SGC",
    "SIGN",
    "Between",
    "BlockModel",
    "GATLayer",
    "GCNLayer",
    "HGTLayer",
    "HopModel",
    "ModelSpec",
    "RGATLayer",
    "RGCNLayer",
    "RelationalModel",
    "SAGELayer",
    "SeHGNN",
    "TypedModel",
    "elu_dropout",
    "make_model",
    "make_optimizer",
    "model_input",
    "named_model",
    "relu_dropout",
]
