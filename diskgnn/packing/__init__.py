"""Samples to a packed directory: where each row will be, and each minibatch's rows contiguous on disk."""
