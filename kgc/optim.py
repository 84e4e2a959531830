"""Optimizers of embedding tables: options of one table's own, and steps that touch only the rows of a batch.

With `sparse` the tables have sparse gradients (`KGEModel.use_sparse_gradients`): the rows looked up in a step and their
gradients, repeated rows summed by a sort on the device. A step then costs what its rows cost, not what the table costs.
For SGD and both kinds of Adagrad that changes no result, because a row without a gradient does not move. Adam moves it:
its momentum decays in every step. `LazyAdam` leaves such rows alone, which is another algorithm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from kgc.errors import UserError

TABLES = ("entity", "relation")


def table_groups(model: nn.Module, objective: nn.Module | None = None) -> list[dict[str, Any]]:
    """Parameter groups named `entity` and `relation`, one a table, and `other` with the rest, if there is any.

    What an objective learns for itself (a generator of negatives) is of the rest.
    """
    groups: dict[str, list[nn.Parameter]] = {name: [] for name in (*TABLES, "other")}
    for name, parameter in model.named_parameters():
        table = name.split(".")[0]
        groups[table if table in TABLES else "other"].append(parameter)
    if objective is not None:
        groups["other"] += objective.parameters()
    return [{"params": params, "name": name} for name, params in groups.items() if params]


def sgd(
    params: Iterable, lr: float, momentum: float = 0.0, sparse: bool = False, groups: Any = None, **options: Any
) -> Optimizer:
    """Stochastic gradient descent; momentum needs dense gradients. See `_made` for the arguments."""
    return _made(torch.optim.SGD, params, sparse, groups, lr=lr, momentum=momentum, **options)


def adam(params: Iterable, lr: float, sparse: bool = False, groups: Any = None, **options: Any) -> Optimizer:
    """Adam (Kingma & Ba 2015), or `LazyAdam` with `sparse`. See `_made` for the arguments."""
    if sparse:
        return _made(LazyAdam, params, True, groups, lr=lr, **options)
    return _made(torch.optim.Adam, params, False, groups, lr=lr, fused=True, **options)


def adamw(params: Iterable, lr: float, weight_decay: float = 0.01, groups: Any = None, **options: Any) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019). See `_made` for the arguments."""
    if options.pop("sparse", False):
        raise UserError("optimizer.sparse=true: AdamW moves every row in every step; optimizer=adam has a sparse form")
    return _made(torch.optim.AdamW, params, False, groups, lr=lr, weight_decay=weight_decay, fused=True, **options)


def adagrad(params: Iterable, lr: float, sparse: bool = False, groups: Any = None, **options: Any) -> Optimizer:
    """Adagrad with an accumulator for every number (Duchi et al. 2011). See `_made` for the arguments."""
    if sparse:
        return _made(SparseAdagrad, params, True, groups, lr=lr, **options)
    groups_of_params = list(params)
    fused = all(p.device.type == "cpu" for group in groups_of_params for p in group["params"])  # torch has it for CPUs
    return _made(torch.optim.Adagrad, groups_of_params, False, groups, lr=lr, fused=fused or None, **options)


def rowwise_adagrad(params: Iterable, lr: float, sparse: bool = False, groups: Any = None, **options: Any) -> Optimizer:
    """`RowwiseAdagrad`. See `_made` for the arguments."""
    return _made(RowwiseAdagrad, params, sparse, groups, lr=lr, **options)


def _made(
    kind: type[Optimizer],
    params: Iterable[Mapping[str, Any]],
    sparse: bool,
    groups: Mapping[str, Mapping[str, Any]] | None,
    **options: Any,
) -> Optimizer:
    """An optimizer over named parameter groups.

    Args:
        kind: the class.
        params: as `table_groups` makes them.
        sparse: whether gradients of the tables will be sparse.
        groups: options of one group by its name, in place of those of all; null ones are not taken.
        options: of all groups.

    Raises:
        UserError: a group or an option that is not there or has no such value, or one that moves rows without a
            gradient.
    """
    for name, own in (groups or {}).items():
        if own is not None and not isinstance(own, Mapping):
            raise UserError(f"optimizer.groups.{name}={own}: write optimizer.groups.{name}.lr={own}, or another option")
    chosen = {name: {k: v for k, v in (own or {}).items() if v is not None} for name, own in (groups or {}).items()}
    made = [{**group, **chosen.get(group["name"], {})} for group in params]
    try:
        optimizer = kind(made, **options)
    except (TypeError, ValueError) as error:
        raise UserError(f"optimizer: {kind.__name__} refuses it: {error}") from error
    # A fused step could undo a scaling of gradients itself, and Lightning then refuses to clip; nothing is scaled here.
    optimizer._step_supports_amp_scaling = False
    names = [group["name"] for group in made]
    for name, own in chosen.items():
        if own and name not in names:
            raise UserError(f"optimizer.groups.{name}: this model's groups are {', '.join(names)}")
        for key in own:
            if key not in optimizer.defaults:
                raise UserError(
                    f"optimizer.groups.{name}.{key}: {kind.__name__}'s options are {', '.join(optimizer.defaults)}"
                )
    for option, instead in (("weight_decay", "regularizer=l2 penalises the rows it did"), ("momentum", "leave it out")):
        if sparse and any(group.get(option) for group in optimizer.param_groups):
            raise UserError(
                f"optimizer.{option} with optimizer.sparse=true: it moves rows that a batch did not touch; {instead}"
            )
    return optimizer


def coalesce_gradients(optimizer: Optimizer) -> None:
    """Sums repeated rows of sparse gradients, on the device and in a fixed order."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()


# Going on with a run.


def own_options(optimizer: Optimizer) -> list[dict[str, Any]]:
    """What each group was made with."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def take_options(optimizer: Optimizer, options: list[dict[str, Any]], rates: list[float]) -> None:
    """After an optimizer's state was loaded: options are those given, learning rates where they had come to.

    Args:
        optimizer: with the state of a checkpoint.
        options: what each group shall have, by `own_options`.
        rates: the learning rate that each group had at the start of the saved run.
    """
    for group, own, rate in zip(optimizer.param_groups, options, rates, strict=True):
        come_to = group["lr"] * (own["lr"] / rate)
        group |= own | {"lr": come_to}
        if "initial_lr" in group:
            group["initial_lr"] = own["lr"]


# Kinds that torch has not.


class SparseAdagrad(torch.optim.Adagrad):
    """torch's Adagrad, which takes sparse gradients, without the warning that it makes tensors that are not checked."""

    def step(self, closure: Any = None) -> Any:
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            return super().step(closure)


class RowwiseAdagrad(Optimizer):
    """Adagrad with one accumulator a row: aᵢ += mean(gᵢ²), xᵢ −= lr · gᵢ / (√aᵢ + ε).

    The memory of one number a row, where Adagrad takes a table's; of fbgemm's `EXACT_ROWWISE_ADAGRAD`, and DGL-KE's
    (Zheng et al. 2020) with repeated rows summed first. Sparse and dense gradients give the same steps.

    Args:
        params: tables [n, …], whose rows are x₁ … xₙ.
        lr: learning rate.
        eps: ε.
    """

    def __init__(self, params: Iterable, lr: float = 0.1, eps: float = 1e-10):
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = _evaluate(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(group, parameter)
        return loss

    def _step(self, group: dict[str, Any], parameter: Tensor) -> None:
        state = self.state[parameter]
        if not state:
            state["sum"] = parameter.new_zeros(parameter.shape[:1])
        if not parameter.grad.is_sparse:
            gradient = parameter.grad
            state["sum"] += gradient.square().flatten(1).mean(1) if gradient.dim() > 1 else gradient.square()
            scale = state["sum"].sqrt().add_(group["eps"])
            parameter.sub_(gradient / scale.view(*scale.shape, *[1] * (gradient.dim() - 1)), alpha=group["lr"])
            return
        rows, gradient = _rows(parameter)
        total = state["sum"][rows] + gradient.square().mean(1)
        state["sum"][rows] = total
        scale = total.sqrt().add_(group["eps"]).unsqueeze(1)
        parameter.index_add_(0, rows, gradient / scale, alpha=-group["lr"])


class LazyAdam(torch.optim.Adam):
    """Adam whose sparse gradients move only their rows, momenta included, as in `torch.optim.SparseAdam`.

    Parameters with dense gradients take Adam's step. The bias correction counts all steps, and ε stands where Adam has
    it: if every row is touched in every step, the result is Adam's.

    Args:
        params: parameter groups.
        lr: learning rate.
        betas: decay of the two momenta.
        eps: ε.
    """

    def __init__(
        self, params: Iterable, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ):
        super().__init__(params, lr=lr, betas=betas, eps=eps)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = _evaluate(closure)
        kept = []
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    self._step(group, parameter)
                    kept.append((parameter, parameter.grad))
                    parameter.grad = None  # Adam refuses sparse gradients
        super().step()
        for parameter, gradient in kept:
            parameter.grad = gradient
        return loss

    def _step(self, group: dict[str, Any], parameter: Tensor) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        first, second = (1 - beta ** state["step"].item() for beta in group["betas"])  # kept on the CPU: no waiting
        rows, gradient = _rows(parameter)
        mean = state["exp_avg"][rows].lerp_(gradient, 1 - group["betas"][0])
        square = state["exp_avg_sq"][rows].mul_(group["betas"][1])
        square.addcmul_(gradient, gradient, value=1 - group["betas"][1])
        state["exp_avg"][rows], state["exp_avg_sq"][rows] = mean, square
        scale = square.sqrt_().div_(second**0.5).add_(group["eps"])
        parameter.index_add_(0, rows, mean / scale, alpha=-group["lr"] / first)


def _rows(parameter: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows [n] of a sparse gradient and their gradients [n, d]."""
    gradient = parameter.grad.coalesce()
    return gradient.indices()[0], gradient.values()


def _evaluate(closure: Any) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
