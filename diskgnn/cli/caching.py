"""The command that looks after the cache folder of `diskgnn.pyg`: cache."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import click

from diskgnn.cli import options
from diskgnn.cli.command import Command
from diskgnn.cli.rendering import Output
from diskgnn.errors import ConfigError
from diskgnn.units import format_size


@click.command(cls=Command, short_help="List or clear what diskgnn.pyg prepared.")
@click.argument("action", type=options.Choice(["list", "clear"]))
@click.option(
    "--cache", "folder", type=options.OUTPUT, help="The folder, as loaders have it.  [default: ~/.cache/diskgnn/pyg]"
)
@click.option("--yes", is_flag=True, help="For clear: do not ask.")
@click.pass_obj
def cache(output: Output, /, action: str, folder: Path | None, yes: bool) -> None:
    """List or clear what the loaders of diskgnn.pyg prepared.

    `list` shows sizes, last uses and what each directory was made for. `clear` removes all that no loader uses now; a
    loader makes again what it needs. XDG_CACHE_HOME says where the folder is, too.
    """
    from diskgnn.work.cache_folder import default_cache_folder, list_directories, remove

    folder = folder or default_cache_folder()
    found = list_directories(folder)
    size_bytes = sum(each.size_bytes for each in found)
    said = f"{folder}: {len(found)} {'directory' if len(found) == 1 else 'directories'}, {format_size(size_bytes)}"
    if action == "list":
        rows = [
            (each.path.name, format_size(each.size_bytes), "in use" if each.in_use else _minute(each.last_used),
             each.made_for)
            for each in found
        ]  # fmt: skip
        output.table(said, ["directory", "size", "last used", "made for"], rows)
        output.result({"cache": folder, "size_bytes": size_bytes, "directories": found})
        return
    if found and not yes:
        if not sys.stdin.isatty():
            raise ConfigError(f"yes: expected --yes, since nobody can be asked; {said}")
        click.confirm(f"{said}. Remove them?", abort=True, err=True)
    removed = [each for each in found if remove(each.path)]
    freed_bytes = sum(each.size_bytes for each in removed)
    left = [each.path.name for each in found if each not in removed]
    output.text(f"{format_size(freed_bytes)} freed in {folder}" + (f"; in use: {', '.join(left)}" if left else ""))
    output.result({"cache": folder, "freed_bytes": freed_bytes, "in_use": left})


def _minute(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
