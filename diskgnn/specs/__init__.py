"""What a user asks for, checked once: how to sample, what seeds are, what to cache."""
