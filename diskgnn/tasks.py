"""What seeds are for: the losses and scores that training and evaluation go by, and how to bring your own."""

from diskgnn.training.checkpoints import load_task
from diskgnn.training.task import Tally, Task, task_of

__all__ = ["Tally", "Task", "load_task", "task_of"]
