"""`python -m diskgnn`, the same as the `diskgnn` command."""

from diskgnn.cli import main

main()
