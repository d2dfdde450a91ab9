"""What every loader yields, and what the trainer asks of it."""
