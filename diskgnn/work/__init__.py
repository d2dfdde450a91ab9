"""How artifacts are written: a runner of steps that survives kills; published whole, here or on a store."""
