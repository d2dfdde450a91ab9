"""Graph to samples: the neighbourhoods of all minibatches of all prepared epochs."""
