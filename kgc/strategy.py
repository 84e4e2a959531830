"""Lightning's strategy for tables of entities whose rows lie on several processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from pytorch_lightning.strategies import ModelParallelStrategy, Strategy
from torch import Tensor
from torch.optim import Optimizer

from kgc.checkpoint_folder import is_folder, read_folder, remove, replace, write_folder
from kgc.sharding import Shard


class ShardedStrategy(ModelParallelStrategy):
    """Groups of `shards` processes share a table of entities; the groups train data-parallel.

    The module's model holds the rows of its process as plain parameters (see `kgc.sharding`), so that every optimizer
    works on it, row-wise and sparse ones too. Checkpoints have them as DTensors, and are folders that any number of
    processes reads (see `kgc.checkpoint_folder`).

    Args:
        shards: processes that share a table; divides the number of processes.
        backend: of the process group, or None for the device's.
    """

    def __init__(self, shards: int, backend: str | None = None):
        super().__init__(tensor_parallel_size=shards, process_group_backend=backend)
        self.shards = shards

    @property
    def shard(self) -> Shard:
        return self.lightning_module.model.shard

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        """Which batches this process takes: those of its group, known before processes are connected."""
        return {"num_replicas": self.world_size // self.shards, "rank": self.global_rank // self.shards}

    def setup_environment(self) -> None:
        before = self._device_mesh
        self._data_parallel_size = self.world_size // self.shards
        super().setup_environment()
        if before is not None:  # a fit is followed by tests: one set of process groups serves all
            self._device_mesh = self.lightning_module._device_mesh = before

    # States are those of the module and of the optimizer as they are, with the rows of a process as parts of a DTensor.

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return self.lightning_module.state_dict()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        state = getattr(optimizer, "_optimizer", optimizer).state_dict()
        places = self._places(optimizer)
        return state | {
            "state": {
                key: {
                    name: self.shard.as_dtensor(value) if key in places and is_table(value) else value
                    for name, value in values.items()
                }
                for key, values in state["state"].items()
            }
        }

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        Strategy.load_model_state_dict(self, checkpoint, strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            places = self._places(optimizer)
            for key, values in state["state"].items():
                for name, value in values.items():
                    if key in places and is_table(value):
                        values[name] = self.shard.part_of(value)
        Strategy.load_optimizer_state_dict(self, checkpoint)

    def _places(self, optimizer: Optimizer) -> set[int]:
        """The numbers of the table of entities among an optimizer's parameters."""
        table = self.lightning_module.model.entity.weight
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        return {number for number, parameter in enumerate(parameters) if parameter is table}

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Writes a folder; called by all processes together."""
        path = Path(self.broadcast(str(filepath)))
        name = self.broadcast(f"{checkpoint['global_step']}-{uuid4().hex[:8]}")
        target = path.with_name(path.name + ".part") if path.is_file() else path
        if target != path and self.is_global_zero and target.exists():
            remove(target)
        write_folder(target, checkpoint, name, self.is_global_zero, self.barrier)
        if target != path and self.is_global_zero:
            replace(target, path)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """A folder's rows of this process, or a file's content, of which the module and the optimizer take theirs."""
        torch.cuda.empty_cache()
        if is_folder(checkpoint_path):
            return read_folder(checkpoint_path, self.shard)
        return torch.load(checkpoint_path, map_location="cpu", weights_only=True, mmap=True)


def is_table(value: Any) -> bool:
    """Whether an optimizer keeps it row by row; what is not is a count of steps."""
    return isinstance(value, Tensor) and value.dim() > 0
