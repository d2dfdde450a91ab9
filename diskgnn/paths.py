"""What names a file."""

import os

PathLike = str | os.PathLike[str]
