"""Lays out the panels of a W&B project: `python -m kgc.workspace --entity ME --project kgc`.

Needs `pip install 'kgc[workspace]'` and a server: a workspace is kept there, not in a run.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from kgc.errors import UserError
from kgc.text import printable
from kgc.tracking import is_logged_in

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace

# Sections, their charts with x axis and curves, and their numbers of the summary; names as in README.md.
CHARTS = {
    "Training": [
        ("Loss", "epoch", ["train/loss"]),
        ("Valid MRR", "epoch", ["valid/mrr"]),
        ("Valid Hits@K", "epoch", ["valid/hits@1", "valid/hits@3", "valid/hits@10"]),
        ("Learning rate", "epoch", ["train/lr"]),
        ("Loss of single steps", "trainer/global_step", ["step/loss"]),
        ("Gradient norms", "trainer/global_step", ["step/grad_norm/entity", "step/grad_norm/relation"]),
    ],
    "By side and ties": [
        ("Valid MRR by side", "epoch", ["valid/head/mrr", "valid/tail/mrr"]),
        ("Valid MRR by rule of ties", "epoch", ["valid/optimistic/mrr", "valid/pessimistic/mrr"]),
        ("Norms of the tables", "epoch", ["norm/entity", "norm/relation"]),
    ],
    "Speed and memory": [
        ("Triples a second", "epoch", ["train/triples_per_second"]),
        ("Queries a second", "epoch", ["valid/queries_per_second"]),
        ("Seconds of an epoch", "epoch", ["time/train", "time/valid", "time/checkpoint"]),
        ("Memory, MiB", "epoch", ["memory/host_mib"]),
    ],
}
NUMBERS = ["test/mrr", "test/hits@1", "test/hits@10", "test/mr", "best/valid/mrr", "best/epoch"]
TABLES = ["test/by_relation", "test/by_category"]


def workspace(entity: str, project: str, name: str = "kgc") -> Workspace:
    """The workspace, not saved yet: test metrics first, then curves, speed, tables.

    Args:
        entity: user or team.
        project: that the runs are filed under.
        name: of the workspace.

    Raises:
        UserError: `wandb-workspaces` is not installed.
    """
    if find_spec("wandb_workspaces") is None:
        raise UserError("kgc.workspace needs wandb-workspaces: pip install 'kgc[workspace]'")
    import wandb_workspaces.reports.v2 as panels
    import wandb_workspaces.workspaces as ws

    test = [panels.BarPlot(title=metric, metrics=[metric]) for metric in NUMBERS]
    tables = [panels.WeavePanelSummaryTable(table_name=table) for table in TABLES]
    curves = [
        ws.Section(
            name=section,
            is_open=True,
            panels=[panels.LinePlot(title=title, x=x, y=list(y)) for title, x, y in charts],
        )
        for section, charts in CHARTS.items()
    ]
    return ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=[
            ws.Section(name="Test", is_open=True, panels=test),
            *curves,
            ws.Section(name="Relations", panels=tables),
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entity", required=True, help="user or team")
    parser.add_argument("--project", default="kgc", help="that the runs are filed under")
    parser.add_argument("--name", default="kgc", help="of the workspace")
    args = parser.parse_args()
    try:
        made = workspace(args.entity, args.project, args.name)
        if not is_logged_in():
            raise UserError("W&B needs an API key to save a workspace: run `wandb login` or set WANDB_API_KEY")
        print(made.save().url)
    except UserError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
