"""From a packed directory to minibatches on the device, read ahead of the training loop."""
