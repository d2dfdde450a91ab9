"""Models for minibatches, and what a training loop of your own needs around them.

from diskgnn.models import make_optimizer, model_input, named_model

model = named_model(loader, "rgcn", hidden=64)
optimizer = make_optimizer(model, lr=0.003)
for batch in loader:
    out = model(batch.blocks, model_input(batch))
"""

from diskgnn.training.between import Between
from diskgnn.training.layers import GATLayer, GCNLayer, SAGELayer
from diskgnn.training.model_output import model_input
from diskgnn.training.model_spec import ModelSpec
from diskgnn.training.models import BlockModel, elu_dropout, make_model, relu_dropout
from diskgnn.training.named_models import named_model
from diskgnn.training.optimizers import make_optimizer
from diskgnn.training.typed_layers import HGTLayer, RGATLayer, RGCNLayer
from diskgnn.training.typed_models import TypedModel

__all__ = [
    "Between",
    "BlockModel",
    "GATLayer",
    "GCNLayer",
    "HGTLayer",
    "ModelSpec",
    "RGATLayer",
    "RGCNLayer",
    "SAGELayer",
    "TypedModel",
    "elu_dropout",
    "make_model",
    "make_optimizer",
    "model_input",
    "named_model",
    "relu_dropout",
]
